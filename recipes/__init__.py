"""GRPO recipes for language and vision-language models on verl and EasyR1."""

__version__ = "0.2.0"
