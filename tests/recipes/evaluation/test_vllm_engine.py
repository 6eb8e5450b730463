"""Generation in this process, without the engine, which runs in tests/examples/test_training.py."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from recipes.config import load
from recipes.evaluation import plan, vllm_engine
from recipes.evaluation.models import EvaluatedModel
from recipes.evaluation.openai_server import Server
from recipes.evaluation.options import Options
from recipes.evaluation.questions import load_questions
from recipes.evaluation.vllm_engine import Engine, VllmSampler
from recipes.paths import ROOT
from recipes.pictures import encoded
from recipes.responses.measures import Sampling
from tests.mistakes import mistake

TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"


def test_a_prompt_that_does_not_fit_is_named_before_the_engine_starts(make_data, make_row):
    long = [{"role": "user", "content": "What is 1 + 1? " * 60}]
    questions = load_questions(make_data(rows=[make_row(0), make_row(1, prompt=long)]))
    assert "row 1" in mistake(lambda: VllmSampler(TINY, questions, 400, Engine())).what
    fix = mistake(lambda: VllmSampler(TINY, questions[:1], 500, Engine())).fix
    room = int(fix.removeprefix("use --max_tokens "))
    assert VllmSampler(TINY, questions[:1], room, Engine())._window == 512


def test_pictures_that_do_not_fit_are_named_before_the_engine_starts(make_data, make_row):
    """vLLM refused the row after its start, by its own words."""
    prompt = [{"role": "user", "content": "<image>How many?"}]
    sides = (56, 1680)
    files = [encoded(Image.new("RGB", (side, side), "red")) for side in sides]
    data = make_data(rows=[make_row(i, prompt=prompt, images=[{"bytes": file}]) for i, file in enumerate(files)])
    questions, engine = load_questions(data), Engine(processor={"max_pixels": 4_000_000})
    model = ROOT / "recipes" / "tasks" / "number_game" / "tiny"
    error = mistake(lambda: VllmSampler(model, questions, 8, engine, data), "data.max_pixels")
    assert error.what.startswith("row 1 has 36")  # 60 x 60 tokens of 28 x 28 pixels
    assert "window of 2048" in error.what
    assert VllmSampler(model, questions, 8, replace(engine, processor={"max_pixels": 4000}), data)._window == 2048
    assert VllmSampler(model, questions, 8, replace(engine, prompt_tokens=100), data)._window == 108
    assert VllmSampler(model, questions[:1], 3000, engine, data)._window == 2048, "vLLM ends a response at the window"


def test_prompts_that_training_leaves_out_are_not_asked(make_data, make_row, monkeypatch):
    """Row 1 by its tokens, row 2 by vLLM's own check, row 3 by the tokens that vLLM makes of its pictures. Where vLLM's
    process ends, the evaluation says so."""

    class Refused(Exception):
        """No ValueError, as vLLM's."""

    class Dead(Exception):
        """Raised by `step` once vLLM's process has ended."""

    class FakeEngine:
        def __init__(self):
            self.waiting = []

        def add_request(self, row, prompt, parameters):
            if row == "2":
                raise Refused("the prompt is longer than the maximum model length of 512")
            self.waiting.append(row)

        def step(self):
            if not self.waiting:
                raise Dead
            choice = SimpleNamespace(text="4", token_ids=[1], finish_reason="stop", cumulative_logprob=-1.0)
            tokens = {"3": [0] * 101}
            return [
                SimpleNamespace(finished=True, request_id=row, outputs=[choice], prompt_token_ids=tokens.get(row, [0]))
                for row in [self.waiting.pop()]
            ]

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(exceptions=SimpleNamespace(VLLMError=Refused)))
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", SimpleNamespace(EngineDeadError=Dead))
    monkeypatch.setattr(vllm_engine, "_parameters", lambda question, sampling: None)
    monkeypatch.setattr(VllmSampler, "_start", lambda self: SimpleNamespace(llm_engine=FakeEngine()))
    long = [{"role": "user", "content": "What is 1 + 1? " * 60}]
    rows = [make_row(0), make_row(1, prompt=long), make_row(2), make_row(3)]
    questions = load_questions(make_data(rows=rows))
    sampler = VllmSampler(TINY, questions, 100, Engine(prompt_tokens=100))
    groups = {group.row: len(group.responses) for group in sampler.generate(questions, Sampling(1, 0.0))}
    assert groups == {0: 1, 1: 0, 2: 0, 3: 0}
    FakeEngine.add_request = lambda *request: None
    mistake(lambda: list(sampler.generate(questions[:1], Sampling(1, 0.0))), "--gpu_memory_utilization, 0.85 now")


def test_what_changes_the_answers_is_in_the_caches_key(monkeypatch):
    here: dict[str, Any] = {"gpus": 0, "vllm": "0.28.0"}
    monkeypatch.setattr(vllm_engine, "visible_gpus", lambda environ: here["gpus"])
    monkeypatch.setattr(vllm_engine, "installed", here.get)
    names = [Engine().generator()]
    assert names == ["vllm 0.28.0 float32"]
    for changed in ({"gpus": 1}, {"vllm": "0.29.0"}):
        here |= changed
        names.append(Engine().generator())
    for settings in ({"chat_template": "x"}, {"template_arguments": {"a": 1}}, {"processor": {"max_pixels": 512}}):
        names.append(Engine(**settings).generator())
    assert len(set(names)) == 6
    assert Engine(gpu_memory_utilization=0.5, tensor_parallel_size=2).generator() == Engine().generator()
    asked = EvaluatedModel("model", "m", "hash", Server("http://host/v1", "m"))
    assert asked.generator(Engine()) == "server", "which this machine's vLLM does not answer for"
    assert "512" in asked.generator(Engine(processor={"max_pixels": 512})), "images are sent with the bounds"


def test_pictures_of_a_run_on_easyr1_are_resized_as_there_and_kept_apart(make_data, make_row, monkeypatch):
    """EasyR1 gives the model's processor no bounds; a run's answers were those of verl's pictures."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=lambda **arguments: arguments))
    monkeypatch.setattr(vllm_engine, "visible_gpus", lambda environ: 1)
    file = encoded(Image.new("RGB", (560, 1008), "red"))
    prompt = [{"role": "user", "content": "<image>How many?"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": file}])])
    made = {}
    for engine in ("verl", "easyr1"):
        words = [f"engine={engine}", "data.min_pixels=784", "data.max_pixels=200000"]
        recipe = load("number_game", arguments=words, environ={}, hardware="gpu")
        made[engine] = plan._engine(Options(), recipe, data)
    arguments = {name: vllm_engine._start_engine(TINY, 512, each, 1) for name, each in made.items()}
    bounds = {"min_pixels": 784, "max_pixels": 200000}
    assert [arguments[name]["mm_processor_kwargs"] for name in made] == [bounds, {}]
    assert [each.shown(file).size for each in made.values()] == [(560, 1008), (333, 600)]
    assert len({each.generator(server=served) for each in made.values() for served in (False, True)}) == 4
    recipe = load("countdown", arguments=["engine=easyr1"], environ={}, hardware="gpu")
    assert not plan._engine(Options(), recipe, make_data(2)).of_easyr1, "texts have no other key"


def test_broken_weights_are_found_by_their_log_probabilities():
    def logprob(value, sampling):
        return vllm_engine._logprob(SimpleNamespace(cumulative_logprob=value), 3, sampling)

    assert logprob(-1.5, Sampling(4, 1.0)) == -1.5
    assert logprob(-1.5, Sampling(1, 0.0)) is None, "it is no entropy"
    for broken in (float("nan"), float("-inf")):
        mistake(lambda broken=broken: logprob(broken, Sampling(1, 0.0)), "row 3")


def test_on_gpus_vllm_compiles_as_the_recipe_says(make_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=lambda **arguments: arguments))
    monkeypatch.setattr(vllm_engine, "visible_gpus", lambda environ: 1)
    engine = plan._engine(Options(), load("countdown", environ={}, hardware="gpu"), make_data(1))
    arguments = vllm_engine._start_engine(TINY, 512, engine, 0)
    assert arguments["compilation_config"] == {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}


def test_a_spawned_engine_imports_the_script_again_without_running_it():
    script = "import runpy, sys; runpy.run_path('scripts/eval_countdown.py', run_name='__mp_main__')"
    checked = f"{script}; assert not {{'torch', 'vllm'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", checked], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_recipes_template_its_arguments_and_top_k_are_in_prompts_and_keys(make_data):
    """A Qwen3 that was trained without thinking was judged thinking."""
    questions = load_questions(make_data(2))
    template = "{{ 'think' if enable_thinking else 'answer' }}: {{ messages[0].content }}"
    texts = []
    for value in (True, False):
        engine = Engine(chat_template=template, template_arguments={"enable_thinking": value})
        sampler = VllmSampler(TINY, questions, 8, engine)
        texts.append(sampler._tokenizer.decode(sampler._tokens(questions[0])))
    assert texts == [f"{word}: {questions[0].text}" for word in ("think", "answer")]
    words = ["--enable_thinking=false", "+data.apply_chat_template_kwargs.style=short", "worker.rollout.top_k=20"]
    recipe = load("countdown", arguments=words, environ={}, hardware="cpu")
    made = plan._engine(Options(), recipe, make_data(2))
    assert made.template_arguments == {"enable_thinking": False, "style": "short"}
    sampling = Sampling(2, 1.0, top_k=recipe.worker.rollout.top_k)
    assert vllm_engine._parameters(questions[0], sampling).top_k == 20


OWN_TOKENIZER = """
from transformers import PreTrainedTokenizerFast

class Mine(PreTrainedTokenizerFast):
    pass
"""


def test_a_models_own_code_runs_where_the_recipe_trusts_it(make_data, make_row, tmp_path, monkeypatch):
    """Without it vLLM and transformers refuse the model; its class is found nowhere else."""
    vllm = pytest.importorskip("vllm")
    model, started = shutil.copytree(TINY, tmp_path / "mine"), []
    (model / "tokenization_mine.py").write_text(OWN_TOKENIZER)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "tokenization_mine.Mine"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "mine"}))
    data = make_data(rows=[make_row(0)])
    words = ["countdown", f"worker.actor.model.model_path={model}"]

    def engine(*further):
        recipe = load(words[0], arguments=[*words[1:], *further], environ={}, hardware="cpu")
        return plan._engine(Options(), recipe, data)

    error = mistake(lambda: VllmSampler(model, load_questions(data), 8, engine()))
    assert "worker.actor.model.trust_remote_code=true" in error.fix
    monkeypatch.setattr(vllm, "LLM", lambda **settings: started.append(settings))
    trusted = engine("worker.actor.model.trust_remote_code=true")
    sampler = VllmSampler(model, load_questions(data), 8, trusted)
    assert type(sampler._tokenizer).__name__ == "Mine"
    sampler._start()
    assert started[0]["trust_remote_code"]
    assert trusted.generator() != engine().generator()
