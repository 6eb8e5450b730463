"""Reads the files that a run writes; shows one run live or after its end, or two runs side by side."""
