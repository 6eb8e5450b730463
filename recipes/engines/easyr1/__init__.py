"""EasyR1: translation of a recipe into its keys, its patched source, and the functions that the patches call."""
