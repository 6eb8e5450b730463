"""Tables of the documentation that are made from the code: keys, variables, algorithms, official examples."""
