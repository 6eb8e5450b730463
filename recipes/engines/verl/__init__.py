"""Support for verl: translation of recipes, the registered engine, and changes to verl without hooks."""
