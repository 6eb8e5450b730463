"""The tiny Qwen2.5-VL and the screenshots that ship with the recipe, and how the model is made."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from PIL import Image

from recipes.config import load
from recipes.data.rewards import load_reward
from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.number_game import pretraining
from recipes.tasks.number_game.data import QUESTION
from recipes.tasks.number_game.pretraining import Players, careful, careless, demonstration, phrases
from recipes.tasks.number_game.rules import cells, parse_deal

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
    assert careless(deal) == "Green: 4, 1.\nAnswer: 0"
    deals = [deal for split in ("train", "test") for part in cells(split).values() for deal in part]
    assert all(score("", careful(deal), str(deal.answer))["score"] == 1.0 for deal in deals)
    right = [score("", careless(deal), str(deal.answer))["accuracy"] for deal in deals]
    assert sum(right) / len(deals) == pytest.approx(5 / 9)
    rng = random.Random(0)
    drawn = [demonstration(deal, Players(careful=0.3), rng) for _ in range(2000)]
    assert drawn.count(careful(deal)) == pytest.approx(600, abs=80)


def test_training_shares_no_deal_no_theme_and_no_size_with_testing():
    found = {}
    for split, rows in (("train", 144), ("test", 288)):
        manifest = read_manifest(DATA / f"{split}.parquet", verify=True)
        assert (manifest["rows"], manifest["source"]) == (rows, "played in browser")
        assert set(manifest["counts"]["light_and_answer"].values()) == {rows // 9}
        facts = pq.read_table(DATA / f"{split}.parquet", columns=["extra_info"])["extra_info"].to_pylist()
        found[split] = [{each["deal"] for each in facts}, {each["theme"] for each in facts}]
        found[split].append({(each["width"], each["height"]) for each in facts})
        assert len(found[split][0]) == rows
    assert not any(train & test for train, test in zip(found["train"], found["test"], strict=True))


def test_the_model_is_the_one_of_its_manifest_and_needs_its_eyes():
    manifest = json.loads((TINY / "manifest.json").read_text())
    assert {path.name for path in TINY.iterdir()} == {*manifest["sha256"], "manifest.json"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == digest, name
    assert manifest["bytes"] == sum((TINY / name).stat().st_size for name in manifest["sha256"]) <= LIMIT
    held_out = manifest["held_out"]
    assert 0.45 <= held_out["greedy_pass@1"] <= 0.65, "GRPO needs room"
    assert held_out["mixed_groups"] > 0.3, "GRPO learns from groups that disagree"
    assert all(share < 0.42 for name, share in held_out["ablation"].items() if name != "as shown")


def test_exchanged_truths_cost_a_reader_everything_and_a_guesser_nothing():
    deals = [deal for part in cells("test").values() for deal in part[:32]]
    reader = pretraining.ablation(deals, [careful(deal) for deal in deals])
    assert reader.pop("as shown") == 1.0
    assert all(share == pytest.approx(1 / 3, abs=0.08) for share in reader.values())
    guesser = pretraining.ablation(deals, ["Answer: 1"] * len(deals))
    assert all(share == pytest.approx(1 / 3, abs=0.08) for share in guesser.values())


def test_the_recipe_leaves_room_for_prompt_and_response(processor, shown):
    recipe = load("number_game", environ={}, hardware="cpu")
    largest = max((each.image for each in pretraining.read(DATA / "train.parquet", "train") + shown), key=area)
    batch = pretraining.inputs(processor, [largest])
    assert batch["input_ids"].shape[1] <= recipe.data.max_prompt_length
    longest = max(len(processor.tokenizer.encode(text)) for text in phrases())
    assert longest < recipe.data.max_response_length
    assert recipe.data.min_pixels <= area(largest) <= recipe.data.max_pixels


def area(image):
    return image.size[0] * image.size[1]


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


@pytest.fixture(scope="module")
def lessons(shown):
    pytest.importorskip("torch")
    from recipes.tasks.number_game.lessons import Lessons
    from recipes.tasks.number_game.pretraining import NumberGame

    spec = NumberGame(DATA)
    plan = replace(spec.plan, steps=5, glyphs=1, rows=1, rules=1, reading=1, cards=10, deals=4, batch=2)
    model, made = spec.build(plan)
    return Lessons(plan, model, made, shown[:24])


def test_the_tower_sees_in_batches_what_it_sees_one_by_one(lessons):
    import torch

    pile, tower = lessons.piles[0], lessons.model.model.visual
    with torch.no_grad():
        batch = pretraining.inputs(
            lessons.processor, [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pile.images]
        )
        usual = tower(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        assert torch.allclose(lessons.see(pile.images.float()).flatten(0, 1), usual, atol=1e-5)


def test_every_stage_teaches_the_parts_it_should_and_draws_by_its_step_alone(lessons):
    model = lessons.model
    parts = {"vision": model.model.visual, "text": model.model.language_model.layers}
    taught = [{"vision"}, {"vision"}, {"text"}, {"vision", "text"}, {"vision", "text"}]
    first = [lessons.loss(step).item() for step in range(5)]
    for step, names in enumerate(taught):
        model.zero_grad(set_to_none=True)
        loss = lessons.loss(step)
        loss.backward()
        assert loss.item() == pytest.approx(first[step])
        got = {name for name, part in parts.items() if any(each.grad is not None for each in part.parameters())}
        assert got == names, step


def test_the_first_layer_is_whitened():
    torch = pytest.importorskip("torch")
    from recipes.tasks.number_game.lessons import whiten

    patches = torch.randn(5000, 3 * 14 * 14) @ torch.diag(torch.linspace(5, 0.1, 588)) + 3.0
    weight = torch.empty(16, 3, 2, 14, 14)
    whiten(weight, patches, floor=0.0)
    seen = patches @ weight.sum(2).flatten(1).T
    assert torch.allclose(seen.T @ seen / len(seen), torch.eye(16), atol=1e-3)


def test_tokens_on_a_card_have_its_digit():
    torch = pytest.importorskip("torch")
    from recipes.tasks.number_game.lessons import NOTHING, card_classes

    cards = torch.tensor([[[0.0, 30, 50, 60], [50, 30, 90, 60], [90, 30, 140, 60]]])
    classes = card_classes((3, 84, 140), cards, torch.tensor([[8, 0, 4]])).view(3, 5)
    assert classes.tolist() == [[NOTHING] * 5, [8, 8, 0, 4, 4], [NOTHING] * 5]


def test_the_shipped_model_reads(processor, shown):
    """On a few screenshots; the manifest has the figures of all."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForImageTextToText

    from recipes.tasks.number_game.pretraining import NumberGame

    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32).eval()
    some = shown[::8]
    responses = NumberGame(DATA).respond(model, processor, some, sample=False)
    reads = [text.startswith(careless(each.deal).split(".")[0]) for text, each in zip(responses, some, strict=True)]
    assert sum(reads) / len(some) > 0.8


def test_screenshots_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(RecipeError, match="there are no screenshots"):
        pretraining.read(tmp_path / "train.parquet", "train")
    with pytest.raises(RecipeError, match="is not the train split"):
        pretraining.read(DATA / "test.parquet", "train")
