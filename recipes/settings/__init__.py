"""Settings of any program: keys declared with type, meaning and names, and layers that give them values."""
