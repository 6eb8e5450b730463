"""The pointer selector: a small policy that chooses in-context examples for a frozen model, trained offline."""
