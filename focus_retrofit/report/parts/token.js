// Tokens as text: what cannot be seen gets a sign, a line break breaks the line.
const SIGNS = /[\u0000-\u001f\u007f-\u009f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

function sign(character) {
  const code = character.charCodeAt(0);
  if (character === "\n" || code === 0x2028 || code === 0x2029) return "¶";
  if (character === "\t") return "⇥";
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "␡" : "·";
}

// In the flow of the text.
function flowing(token) {
  if (token === "") return "∅";
  return token.replace(SIGNS, (c) => sign(c) + (sign(c) === "¶" ? "\n" : ""));
}

// In a sentence, on one line.
function quoted(token) {
  const shown = token.length > 40 ? token.slice(0, 39) + "…" : token;
  return "'" + shown.replace(SIGNS, sign) + "'";
}

function node(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const percent = (share) => Math.round(100 * share) + "\u00a0%";
const CYCLE = 16;
const groupClass = (group) => "g" + (group % CYCLE);
