"""Memory does not grow with the responses: three times as many, nearly the same peak."""

from __future__ import annotations

from recipes.benchmarks.evaluation import measure


def test_more_responses_take_nearly_the_same_memory():
    few, many = measure(4_000, 16_000)
    # 12,000 more responses of 620 characters would be at least 26 MiB as records; their 750 questions may stay.
    assert many.peak_mib - few.peak_mib < 15
    assert many.microseconds_each < 2_000, "CPU time, whatever else the machine does"
