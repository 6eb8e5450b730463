"""The benchmark of a step: `python -m tools.benchmarks.step`."""
