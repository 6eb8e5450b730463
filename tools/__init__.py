"""Maintainers' programs, outside the wheel: `python -m tools.NAME` with any Python, from the repository's root."""

from recipes.installation import ensure

ensure()
