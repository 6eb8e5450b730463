"""Benchmarks: `python -m tools.benchmarks.step` and `python -m tools.benchmarks.against_trl`."""
