"""Serve a model over HTTP with vLLM: `python scripts/serve.py MODEL [vLLM's options]`.

MODEL may be a run's checkpoints: the last whole step is served.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

from recipes.engines.cpu.vllm_distribution import serve
from recipes.errors import reported_errors
from recipes.evaluation.models import find_model
from recipes.paths import in_artifacts

if __name__ == "__main__":
    with reported_errors():
        if len(sys.argv) > 1 and Path(in_artifacts(sys.argv[1])).expanduser().exists():
            sys.argv[1] = str(find_model(sys.argv[1], "scripts/serve.py MODEL"))
    serve()
