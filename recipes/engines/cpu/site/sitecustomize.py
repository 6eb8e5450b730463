"""Imported at the start of each Python of a run on CPUs: see `SITE` in ../settings.py."""

import recipes  # noqa: F401
