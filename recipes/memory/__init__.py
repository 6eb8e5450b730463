"""Memory of GPUs and machine: a model's sizes, what is in use, the passes that fit, and what each phase holds.

Nothing here knows a recipe: `recipes/config` asks for token budgets, `recipes/preflight/memory.py` for the phases.
"""
