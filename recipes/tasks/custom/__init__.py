"""The custom-task kit's data: JSON, JSONL, CSV and parquet of prompts and answers, converted to the trainers' rows."""
