// The whole text as a strip, one column for each token; below it, black where the token chosen sees.
function drawStrip(canvas, groups, marks, only, picking) {
  const scale = window.devicePixelRatio || 1, style = getComputedStyle(canvas);
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  if (!width) return;
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const pen = canvas.getContext("2d"), colours = new Map();
  const colour = (name) => {
    if (!colours.has(name)) colours.set(name, style.getPropertyValue(name).trim());
    return colours.get(name);
  };
  pen.clearRect(0, 0, width, height);
  const bar = Math.round(height * 0.6), rail = Math.round(height * 0.7), step = width / groups.length;
  pen.fillStyle = colour("--wash");
  pen.fillRect(0, rail, width, height - rail);
  for (let j = 0; j < groups.length; j++) {
    const x = Math.floor(j * step), wide = Math.max(Math.ceil((j + 1) * step) - x, 1), group = groups[j][0];
    const lit = picking ? marks[j] > 0 : only === null || only === group;
    pen.globalAlpha = lit ? 1 : 0.22;
    pen.fillStyle = colour("--g" + (group % (CYCLE / 2)));
    pen.fillRect(x, 0, wide, bar);
    pen.globalAlpha = 1;
    if (picking && marks[j]) {
      pen.fillStyle = marks[j] === NEAR ? colour("--other") : colour("--ink");
      pen.fillRect(x, rail, wide, height - rail);
    }
    if (marks[j] === SELF) { pen.fillStyle = colour("--ink"); pen.fillRect(x, 0, Math.max(wide, 2 * scale), height); }
  }
}
