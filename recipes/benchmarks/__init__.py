"""Synthetic inputs and stopwatches for the benchmarks in scripts/bench_*.py."""
