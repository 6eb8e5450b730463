"""Maintainers' programs, outside the wheel: `python -m tools.NAME`, from the root of the repository."""
