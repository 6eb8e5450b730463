"""Responses: as a model gave them, scored by a reward, measured, and read from the files of runs and evaluations."""
