"""The tasks with data of their own: problems, prompt, tiny model."""
