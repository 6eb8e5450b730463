"""The benchmarks of `scripts/bench.py`: each module but shapes, completions and watching has a `command`."""
