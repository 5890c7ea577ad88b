"""What a model still finds far back in its context, by method of attention."""

from __future__ import annotations

from .haystack import HAYSTACKS
from .item import Item, Setting, Task
from .run import cell_key, run_retrieval
from .summary import summarise
from .tasks import TASKS

__all__ = ["HAYSTACKS", "TASKS", "Item", "Setting", "Task", "cell_key", "run_retrieval", "summarise"]
