"""EasyR1: the recipe in its words, its source with `patches/easyr1-*.patch`, and what that source calls."""
