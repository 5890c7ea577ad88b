// The text: one element for each token, made once; choosing only changes classes.
const MARK_CLASS = ["", " self", " near", " sink", " far"];

function startView(inspection) {
  const by = (id) => document.getElementById(id);
  const box = by("tokens"), status = by("status"), slider = by("layer"), strip = by("strip"), top = by("top");
  const length = inspection.tokens.length, marks = new Uint8Array(length), painted = new Int32Array(length).fill(-1);
  let layer, only = null, over = null, held = null, stop = 0, asked = false, pressed = false;

  const spans = inspection.tokens.map((token, j) => {
    const span = node("span", "t", flowing(String(token)));
    span.tabIndex = j === 0 ? 0 : -1;
    span.setAttribute("role", "option");
    span.setAttribute("aria-selected", "false");
    return span;
  });
  spans.forEach((span, j) => { span.index = j; });
  // a line break at a token's end stands outside of it, or its outline would reach into the next line
  for (const span of spans) {
    const text = span.textContent;
    box.append(span);
    if (text.endsWith("\n")) { span.textContent = text.slice(0, -1); box.append("\n"); }
  }

  const buttons = [null, ...Array(inspection.num_groups).keys()].map((group) => {
    const button = node("button", group === null ? "" : groupClass(group), group === null ? "all" : String(group));
    button.type = "button";
    button.setAttribute("aria-label", group === null ? "all groups" : "group " + group);
    button.addEventListener("click", () => { only = group; over = held = null; draw(); });
    by("groups").append(button);
    return button;
  });

  function words(i, counts) {
    const groups = layer.groups[i], many = (n, one, more) => n + " " + (n === 1 ? one : more);
    const name = `token ${i} ${quoted(String(inspection.tokens[i]))}, ${groups.length > 1 ? "groups" : "group"} ${groups.join(", ")}`;
    const [, , near, sinks, far] = counts, total = 1 + near + sinks + far;
    return `${name}: sees ${near} nearby, ${many(sinks, "sink", "sinks")} and ${many(far, "distant token", "distant tokens")}: `
      + `${percent(total / (i + 1))} of what full attention sees`;
  }

  function rest() {
    if (only !== null) {
      const members = layer.groups.filter((groups) => groups[0] === only).length;
      return `group ${only} holds ${members} of ${length} tokens in layer ${layer.layer}: ${percent(members / length)}`;
    }
    const facts = [`layer ${layer.layer}`];
    if (layer.density != null) facts.push(`${percent(layer.density)} of all pairs computed`);
    if (layer.distant != null) facts.push(`${percent(layer.distant)} of the distant ones`);
    if (layer.confidence != null) facts.push(`mean confidence of a token in its group ${layer.confidence.toFixed(2)}`);
    if (layer.temperature != null) facts.push(`temperature ${layer.temperature.toFixed(2)}`);
    return facts[0] + (facts.length > 1 ? ": " + facts.slice(1).join(", ") : "");
  }

  function draw() {
    asked = false;
    const chosen = held !== null ? held : over, picking = chosen !== null;
    if (picking) status.textContent = words(chosen, look(inspection, layer.groups, chosen, marks));
    else { marks.fill(0); status.textContent = rest(); }
    box.classList.toggle("picking", picking);
    for (let j = 0; j < length; j++) {
      const group = layer.groups[j][0], out = !picking && only !== null && group !== only;
      const code = (group * 2 + out) * 8 + marks[j];
      if (code === painted[j]) continue;
      painted[j] = code;
      spans[j].className = "t " + groupClass(group) + MARK_CLASS[marks[j]] + (out ? " out" : "");
      spans[j].dataset.g = group;
    }
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(only === (place ? place - 1 : null))));
    drawStrip(strip, layer.groups, marks, only, picking);
  }

  function later() {
    if (!asked) { asked = true; requestAnimationFrame(draw); }
  }

  function hold(i, focus) {
    if (held !== null) spans[held].setAttribute("aria-selected", "false");
    held = i;
    if (i !== null) {
      spans[i].setAttribute("aria-selected", "true");
      spans[stop].tabIndex = -1;
      spans[i].tabIndex = 0;
      stop = i;
      if (focus) spans[i].focus({ preventScroll: false });
    }
    later();
  }

  function choose() {
    layer = inspection.layers[slider.value];
    by("layer-name").textContent = layer.layer;
    slider.setAttribute("aria-valuetext", "layer " + layer.layer);
    if (top) {
      top.hidden = !(layer.top && layer.top.length);
      by("top-layer").textContent = "layer " + layer.layer;
      showTop(by("top-groups"), layer);
    }
    later();
  }

  // The token in the line above or below that stands nearest.
  function line(i, step) {
    const { offsetTop: here, offsetLeft: x } = spans[i];
    let j = i, best = i, row = null;
    for (j += step; j >= 0 && j < length; j += step) {
      if (spans[j].offsetTop === here) continue;
      if (row === null) { row = spans[j].offsetTop; best = j; }
      if (spans[j].offsetTop !== row) break;
      if (Math.abs(spans[j].offsetLeft - x) < Math.abs(spans[best].offsetLeft - x)) best = j;
    }
    return best;
  }

  const moves = {
    ArrowLeft: (i) => i - 1, ArrowRight: (i) => i + 1, ArrowUp: (i) => line(i, -1), ArrowDown: (i) => line(i, 1),
    Home: () => 0, End: () => length - 1,
    PageUp: (i) => i - Math.max(inspection.window, 1), PageDown: (i) => i + Math.max(inspection.window, 1),
  };

  box.addEventListener("keydown", (event) => {
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    hold(Math.min(Math.max(move(stop), 0), length - 1), true);
  });
  box.addEventListener("pointerdown", () => { pressed = true; });
  window.addEventListener("pointerup", () => { pressed = false; });
  window.addEventListener("pointercancel", () => { pressed = false; });
  box.addEventListener("focusin", (event) => {
    const i = event.target.index;
    if (i !== undefined && !pressed && held !== i) hold(i, false);
  });
  box.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || event.target.index === undefined) return;
    over = event.target.index;
    if (held === null) later();
  });
  box.addEventListener("pointerleave", () => { over = null; if (held === null) later(); });
  box.addEventListener("click", (event) => {
    const i = event.target.index;
    if (i === undefined || i === held) { over = null; hold(null, false); } else hold(i, true);
  });
  strip.addEventListener("click", (event) => {
    const at = Math.floor(event.offsetX / strip.clientWidth * length);
    hold(Math.min(Math.max(at, 0), length - 1), false);
    const span = spans[held];
    box.scrollTop = span.offsetTop - box.clientHeight / 2;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    over = only = null;
    hold(null, false);
  });
  slider.addEventListener("input", choose);
  by("numbers").addEventListener("change", (event) => box.classList.toggle("numbered", event.target.checked));
  window.addEventListener("resize", later);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  if (inspection.layers.length === 1) slider.closest(".layer").querySelector("input").disabled = true;
  choose();
  draw();
}
