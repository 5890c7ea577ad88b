"""Random configurations against the oracle: any part of one can be run again by its number."""

from .run import Failure, soak

__all__ = ["Failure", "soak"]
