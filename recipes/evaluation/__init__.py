"""Signal probing, base against trained, and the reports: what `scripts/eval.py` calls (docs/ARCHITECTURE.md)."""
