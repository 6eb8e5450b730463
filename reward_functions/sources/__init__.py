"""The parts of `dispatch.py`, which loads this package by its path: it is not installed and imports no trainer."""
