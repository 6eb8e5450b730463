"""The parts of `dispatch.py`, which loads them as a package by path: no installation, nothing of the trainer's."""
