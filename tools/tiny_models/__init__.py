"""Pretraining of the tiny models that ship with the recipes."""
