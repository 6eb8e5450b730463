"""Serve a model over HTTP with vLLM: `python scripts/serve.py MODEL [vLLM's options]`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

from recipes.engines.cpu.vllm_distribution import serve

if __name__ == "__main__":
    serve()
