"""Signal probing, base against trained, and the reports: what `scripts/eval_<task>.py` calls.

Data flows one way: questions -> sampling (cached on disk) -> scoring -> metrics -> probe or comparison -> report.
"""
