"""Inputs for kernel tests, and the yardstick; the same that `python -m focus_kernels.soak` draws from."""

from focus_kernels.soak.cases import Case, check, random_groups

__all__ = ["Case", "check", "random_groups"]
