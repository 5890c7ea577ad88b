"""`python -m focus_retrofit`, for launchers that want a module."""

from .cli import main

main()
