"""Tensors in a file: what a machine's memory cannot hold is read from disk, page by page, where it is asked for."""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from .errors import FocusError


@dataclass(frozen=True)
class Mapped:
    """A tensor over a file that has no name any more: it is gone with the process, however that ends."""

    tensor: Tensor
    pages: mmap.mmap

    def release(self) -> None:
        """Its pages leave this process's memory; what they hold stays in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.pages.madvise(mmap.MADV_DONTNEED)


def mapped(directory: str, shape: tuple[int, ...], dtype: torch.dtype, what: str = "keys") -> Mapped:
    """An uninitialised tensor of this shape in a new file of a directory; `what` names it where there is no room."""
    size = max(prod(shape) * dtype.itemsize, mmap.PAGESIZE)
    try:
        file = tempfile.TemporaryFile(prefix="focus-", dir=directory)  # noqa: SIM115
    except OSError as error:
        raise FocusError(
            f"cannot spill {what} to {directory}: {error.strerror}; give a directory to write to"
        ) from None
    with file:
        try:
            if hasattr(os, "posix_fallocate"):  # a full disk shows here, not as a crash when a page is written
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise FocusError(
                f"cannot spill {size / 1e9:.2f} GB of {what} to {directory}: {error.strerror}; give a directory with "
                "more room, or hold less (keys take half as bfloat16)"
            ) from None
        pages = mmap.mmap(file.fileno(), size)
    return Mapped(torch.frombuffer(pages, dtype=dtype, count=prod(shape)).view(shape), pages)
