"""Generated tables of the pages: keys, variables, algorithms, comparisons, lines cited from other projects."""
