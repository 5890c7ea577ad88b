"""Writing files so that a crash leaves the old ones."""

from focus_kernels.files import write_atomically

__all__ = ["write_atomically"]
