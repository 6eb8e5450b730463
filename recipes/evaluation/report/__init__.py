"""The report of an evaluation: figures, sampled questions, and the page."""
