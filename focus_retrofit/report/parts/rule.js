// What a token sees, counted by the model's own rule.
const SELF = 1, NEAR = 2, SINK = 3, FAR = 4;

// Writes a mark for every token into `marks` and returns how many there are of each.
function look(inspection, groups, i, marks) {
  const share = inspection.match === "share", mine = new Set(groups[i]), counts = [0, 0, 0, 0, 0];
  marks.fill(0);
  for (let j = 0; j <= i; j++) {
    const mark = j === i ? SELF
      : i - j <= inspection.window ? NEAR
      : j < inspection.sinks ? SINK
      : (share ? groups[j].some((g) => mine.has(g)) : mine.has(groups[j][0])) ? FAR
      : 0;
    marks[j] = mark;
    counts[mark]++;
  }
  return counts;
}
