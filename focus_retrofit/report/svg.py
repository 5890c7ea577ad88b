"""A figure as SVG that may stand inside a page: no ids that clash, no style that leaks, the reader's theme."""

from __future__ import annotations

import io
import re
from typing import Any
from xml.etree import ElementTree

from .embed import visible
from .theme import variables

_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_COLOUR = re.compile(r"#[0-9a-f]{6}")


def inline_svg(figure: Any, name: str, label: str) -> str:
    """The drawing, its ids prefixed by `name`, with `label` as what it says to those who do not see it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _drop(root, "metadata")
    _drop(root, "style")
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {_local(key): value for key, value in element.attrib.items()}
    used = _referenced(root)
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                element.attrib.pop(key)
                if value in used:
                    element.set(key, f"{name}-{value}")
            elif key == "href":
                element.set(key, f"#{name}-{value.removeprefix('#')}")
            elif key == "style":
                element.set(key, _restyle(_REFERENCE.sub(rf"url(#{name}-\1)", value)))
            else:
                element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    said = {"role": "img", "aria-label": visible(label), "class": name.split("-")[-1]}
    root.attrib = {"viewBox": root.attrib["viewBox"], **said}
    return re.sub(r"\n\s*", " ", ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    return name.rsplit("}", 1)[-1]


def _drop(root: ElementTree.Element, tag: str) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) == tag]:
            parent.remove(child)


def _referenced(root: ElementTree.Element) -> set[str]:
    used: set[str] = set()
    for element in root.iter():
        for key, value in element.attrib.items():
            used.update([value.removeprefix("#")] if key == "href" else _REFERENCE.findall(value))
    return used


def _restyle(style: str) -> str:
    """Colours by name, the page's own typeface; older matplotlib writes the font in one word."""
    themed = variables()
    kept = []
    for declaration in filter(None, map(str.strip, style.split(";"))):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":
            size = re.search(r"[\d.]+px", value)
            kept += ["font-weight: 700"] if re.match(r"(bold|[67]00)\b", value) else []
            kept += [f"font-size: {size[0]}"] if size else []
        elif key != "font-family":
            kept.append(f"{key}: {_COLOUR.sub(lambda found: themed.get(found[0], found[0]), value)}")
    return "; ".join(kept)
