"""Writing files so that a crash leaves the old ones."""

from focus_kernels.files import fill_atomically, is_leftover, write_atomically

__all__ = ["fill_atomically", "is_leftover", "write_atomically"]
