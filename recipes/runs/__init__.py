"""Everything that a run has written: its folder, metrics, log, and dumps of responses."""
