"""`python -m recipes.engines.easyr1_compat.main key=value ...`: EasyR1's own entry point, read through `imports.py`."""

from __future__ import annotations

import sys

from recipes.engines.easyr1_compat import imports


def main() -> None:
    """Run EasyR1's trainer with the arguments of the command line."""
    imports.install()
    from verl.trainer.main import main as train

    train()


if __name__ == "__main__":
    sys.exit(main())
