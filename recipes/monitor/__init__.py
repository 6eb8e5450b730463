"""The run while it lives: processes, log, metrics, progress, summary."""
