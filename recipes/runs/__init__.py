"""Runs: the files that a run writes, read once and shown live, after its end, and two side by side."""
