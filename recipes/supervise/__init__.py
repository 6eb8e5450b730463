"""A trainer under supervision: its log, its metrics, its processes, and what is said about them."""
