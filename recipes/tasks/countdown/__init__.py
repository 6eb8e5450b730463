"""Countdown: combine three or four numbers into a target, each number exactly once."""
