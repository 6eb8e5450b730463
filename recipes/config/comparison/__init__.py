"""Our recipes beside the official examples of EasyR1 and verl: facts, a table, and a reason for every difference."""

from __future__ import annotations

from recipes.config.comparison.official import Official, chosen, names
from recipes.config.comparison.rows import Row, Table, compare

__all__ = ["Official", "Row", "Table", "chosen", "compare", "names"]
