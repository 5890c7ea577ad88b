"""What one would use instead of Focus, each a small file, on the same model, window, sinks and budget of pairs."""

from __future__ import annotations

from .base import Rival, Text
from .h2o import H2O
from .longformer import Longformer
from .moba import MoBA
from .routing import Routing
from .seer import Seer
from .sparq import SparQ
from .weights import FineTuning, LoRA, Trained
from .window import Wide, Window

RIVALS: dict[str, type[Rival]] = {
    rival.name: rival for rival in (Window, Wide, Longformer, Routing, MoBA, Seer, SparQ, H2O)
}

__all__ = ["RIVALS", "FineTuning", "LoRA", "Rival", "Text", "Trained"]
