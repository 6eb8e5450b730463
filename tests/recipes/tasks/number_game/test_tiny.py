"""The tiny Qwen2.5-VL and the screenshots that ship with the recipe, and how the model is made."""

from __future__ import annotations

import hashlib
import json
import random

import pytest

from recipes.config import load
from recipes.data.rewards import load_reward
from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.number_game import pretraining
from recipes.tasks.number_game.data import QUESTION, gold_response
from recipes.tasks.number_game.pretraining import Players, careful, demonstration, phrases, talkative
from recipes.tasks.number_game.rules import RANKS, Deal, cells, parse_deal

TINY = ROOT / "recipes" / "tasks" / "number_game" / "tiny"
DATA = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"
LIMIT = 6 * 2**20


@pytest.fixture(scope="module")
def score():
    return load_reward("reward_functions/number_game.py:compute_score").compute_score


@pytest.fixture(scope="module")
def processor():
    pytest.importorskip("transformers")
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(TINY)


@pytest.fixture(scope="module")
def shown():
    return pretraining.read(DATA / "test.parquet", "test")


def test_players_earn_what_they_should(score):
    deal = parse_deal("g415")
    assert careful(deal) == "Green: 4, 1, 5. 5 is on the right.\nAnswer: 2"
    assert score("", careful(deal), "2")["score"] == 1.0
    assert score("", gold_response(1), "2")["score"] == 0.1
    assert score("", talkative(2), "2")["score"] == 0.0


def test_every_careful_answer_is_right(score):
    deals = [deal for split in ("train", "test") for part in cells(split).values() for deal in part]
    assert len(deals) == 1512
    assert all(score("", careful(deal), str(deal.answer))["accuracy"] == 1.0 for deal in deals)


def test_players_come_in_their_shares():
    rng, deal = random.Random(0), Deal("red", (3, 7, 4))
    drawn = [demonstration(deal, Players(careful=0.5, hasty=0.3), rng) for _ in range(2000)]
    assert drawn.count(careful(deal)) == pytest.approx(1000, abs=80)
    assert sum(text.startswith("Answer") for text in drawn) == pytest.approx(600, abs=80)
    assert {text for text in drawn if text.startswith("The")} == {talkative(position) for position in range(3)}


def test_the_screenshots_are_those_of_their_manifests():
    deals = {}
    for split, rows in (("train", 90), ("test", 36)):
        manifest = read_manifest(DATA / f"{split}.parquet", verify=True)
        assert manifest["rows"] == rows
        assert manifest["source"] == "played in browser"
        assert manifest["counts"]["screens"] == {"140x224": rows}
        assert set(manifest["counts"]["light_and_answer"].values()) == {rows // 9}
        deals[split] = {each.deal for each in pretraining.read(DATA / f"{split}.parquet", split)}
        assert len(deals[split]) == rows
    assert not deals["train"] & deals["test"]
    assert sum(path.stat().st_size for path in DATA.iterdir()) <= 2**20


def test_the_model_is_the_one_of_its_manifest():
    manifest = json.loads((TINY / "manifest.json").read_text())
    assert {path.name for path in TINY.iterdir()} == {*manifest["sha256"], "manifest.json"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == digest, name
    assert manifest["bytes"] == sum((TINY / name).stat().st_size for name in manifest["sha256"]) <= LIMIT
    assert manifest["parameters"] <= 5_000_000
    assert manifest["held_out"]["mixed_groups"] > 0.5, "GRPO learns from groups that disagree"


def test_the_recipe_leaves_room_for_prompt_and_response(processor, shown):
    recipe = load("number_game", environ={}, hardware="cpu")
    batch = pretraining.inputs(processor, shown[:2])
    assert batch["input_ids"].shape == (2, 79)
    assert (batch["input_ids"] == processor.image_token_id).sum(dim=1).tolist() == [40, 40]
    assert batch["input_ids"].shape[1] <= recipe.data.max_prompt_length
    longest = max(len(processor.tokenizer.encode(text)) for text in phrases())
    assert longest < recipe.data.max_response_length
    width, height = shown[0].image.size
    assert recipe.data.min_pixels <= width * height <= recipe.data.max_pixels


def test_any_text_comes_back_from_the_tokenizer(processor):
    tokenizer = processor.tokenizer
    for text in (QUESTION, *phrases(), "7 ≠ 8\t“数字”", "Answer: 12"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert json.loads((TINY / "config.json").read_text())["text_config"]["vocab_size"] == len(tokenizer)


def test_the_shipped_files_are_what_the_code_makes(processor):
    """Configuration and tokenizer; the weights take minutes."""
    pytest.importorskip("torch")
    from recipes.tasks.number_game.pretraining import NumberGame, Shape, build_model, build_tokenizer

    assert json.loads((TINY / "manifest.json").read_text())["plan"] == NumberGame.plan.as_dict()
    tokenizer = build_tokenizer()
    assert tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert tokenizer.chat_template == processor.chat_template
    one, two = (build_model(tokenizer, Shape(), seed=3).state_dict() for _ in range(2))
    assert all(tensor.equal(two[name]) for name, tensor in one.items())
    header = (TINY / "model.safetensors").read_bytes()
    entries = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    stored = {tuple(entry["shape"]) for name, entry in entries.items() if name != "__metadata__"}
    assert stored == {tuple(tensor.shape) for tensor in one.values()}


def test_only_the_response_and_its_end_are_learned(processor, shown):
    from recipes.tasks.number_game.pretraining import IGNORED, labelled

    responses = [careful(shown[0].deal), talkative(1)]
    batch = labelled(processor, shown[:2], responses)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["attention_mask"].shape
    for row, text in enumerate(responses):
        learned = batch["labels"][row][batch["labels"][row] != IGNORED].tolist()
        assert processor.tokenizer.decode(learned) == text + processor.tokenizer.eos_token
        assert batch["attention_mask"][row].sum() == 79 + len(learned)


def test_the_shipped_model_looks(processor, shown):
    """What it begins a response with depends on the lamp that is on; with other pictures it names other lamps."""
    import torch
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32).eval()
    lamps = {light: processor.tokenizer.encode(light.capitalize())[0] for light in RANKS}

    def right(pictures):
        with torch.no_grad():
            last = model(**pretraining.inputs(processor, pictures)).logits[:, -1]
        named = [max(lamps, key=lambda light: row[lamps[light]]) for row in last]
        return sum(light == each.deal.light for light, each in zip(named, shown, strict=True)) / len(shown)

    assert right(shown) > 0.6
    assert right(shown[1:] + shown[:1]) < 0.5


def test_screenshots_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(RecipeError, match="there are no screenshots"):
        pretraining.read(tmp_path / "train.parquet", "train")
    with pytest.raises(RecipeError, match="is not the train split"):
        pretraining.read(DATA / "test.parquet", "train")
