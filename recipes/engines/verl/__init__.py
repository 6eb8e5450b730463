"""verl: a recipe in its keys, the registered engine, and the changes to it that have no hook."""
