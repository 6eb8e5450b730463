"""Support for verl: translation of recipes, the registered engine, and changes where verl has no hooks."""
