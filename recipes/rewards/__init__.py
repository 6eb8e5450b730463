"""The reward: its contract, loading by path, calling for each engine, weights, identity."""
