"""The benchmarks of `scripts/bench.py`: a module with a `command` each."""
