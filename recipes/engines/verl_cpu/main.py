"""`python -m recipes.engines.verl_cpu.main key=value ...`: verl's own entry point, for a machine without a GPU."""

from __future__ import annotations

if __name__ == "__main__":
    from verl.trainer.main_ppo import main

    main()
