"""For tools that ask for a setup.py; pyproject.toml states the package."""

from setuptools import setup

setup()
