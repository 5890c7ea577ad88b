"""The colours of page and plots, each for light and dark, in one place; groups stay apart for colour-blind readers."""

from __future__ import annotations

ROLES = {
    "paper": ("#ffffff", "#15171b"),
    "wash": ("#f5f6f8", "#1d2026"),
    "line": ("#dde1e7", "#343a43"),
    "ink": ("#1a1d23", "#e9ebef"),
    "soft": ("#586070", "#a6aebb"),
    "focus": ("#0a5fb0", "#7dbcff"),
    "other": ("#7c8594", "#8f98a6"),
    "good": ("#0b6b4f", "#5fd3ab"),
    "bad": ("#ab3a12", "#ff9f78"),
    "loss": ("#fcebe3", "#38241c"),
}

# backgrounds of text: light ones under dark ink, deep ones under light ink
GROUPS = (
    ("#a9cdf1", "#1c4f80"),
    ("#f8b792", "#86401c"),
    ("#f2e28d", "#655900"),
    ("#8bd5bb", "#0d6049"),
    ("#f6bccc", "#7c2f4d"),
    ("#cfd974", "#4f5c16"),
    ("#cab9ea", "#503f84"),
    ("#d3d6da", "#4b5058"),
)
# lines of one plot, told apart by colour-blind readers too; the first is Focus wherever it is alone
LINES = ("#0a5fb0", "#c2570c", "#0b7a5a", "#7b4bb3", "#a8326e", "#7a6a00")
CYCLE = 2 * len(GROUPS)  # the second time around a colour carries a dotted line


def light(role: str) -> str:
    return ROLES[role][0]


def line_colour(number: int) -> str:
    return LINES[number % len(LINES)]


def group_colour(group: int) -> str:
    return GROUPS[group % len(GROUPS)][0]


def second_time(group: int) -> bool:
    return group % CYCLE >= len(GROUPS)


def variables() -> dict[str, str]:
    """Light colour -> the CSS variable that follows the reader's theme."""
    named = {colour: f"var(--{role})" for role, (colour, _) in ROLES.items()}
    return named | {colour: f"var(--g{number})" for number, (colour, _) in enumerate(GROUPS)}


def css() -> str:
    """Both palettes, and one class per group."""
    pairs = list(ROLES.items()) + [(f"g{number}", pair) for number, pair in enumerate(GROUPS)]
    lit, dark = ("".join(f"--{name}:{pair[side]};" for name, pair in pairs) for side in (0, 1))
    lines = [f":root{{{lit}}}", f"@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}"]
    for group in range(CYCLE):
        dotted = ";border-bottom:2px dotted var(--ink)" if second_time(group) else ""
        lines.append(f".g{group}{{background:var(--g{group % len(GROUPS)}){dotted}}}")
    return "\n".join(lines)
