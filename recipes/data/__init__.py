"""Rows for both engines: from users' files, hubs and generators to parquet."""
