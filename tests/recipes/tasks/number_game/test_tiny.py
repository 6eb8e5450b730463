"""The tiny Qwen2.5-VL and the screenshots that ship with the recipe, and how the model is made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from recipes.config import load
from recipes.data.rewards import load_reward
from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.number_game import pretraining
from recipes.tasks.number_game.data import QUESTION
from recipes.tasks.number_game.pretraining import NumberGame, careful, careless, phrases
from recipes.tasks.number_game.rules import all_deals, cells, parse_deal

torch = pytest.importorskip("torch")
TINY = NumberGame().tiny
DATA = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data"
SPEC = NumberGame(DATA)


@pytest.fixture(scope="module")
def processor():
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(TINY)


@pytest.fixture(scope="module")
def shown():
    return pretraining.read(DATA / "test.parquet", "test")


def test_players_earn_what_they_should_and_the_ablation_tells_readers_from_guessers():
    score = load_reward("reward_functions/number_game.py:compute_score").compute_score
    deal = parse_deal("g415")
    assert careful(deal) == "Green: 4, 1, 5. 5 is on the right.\nAnswer: 2"
    assert careless(deal) == "Green: 4, 1.\nAnswer: 0"
    assert all(score("", careful(deal), str(deal.answer))["score"] == 1.0 for deal in all_deals())
    right = [score("", careless(deal), str(deal.answer))["accuracy"] for deal in all_deals()]
    assert sum(right) / len(right) == pytest.approx(5 / 9)
    deals = [deal for part in cells("test").values() for deal in part[:32]]
    reader = pretraining.ablation(deals, [careful(deal) for deal in deals])
    assert reader.pop("as shown") == 1.0
    guesser = pretraining.ablation(deals, ["Answer: 1"] * len(deals))
    assert [*reader.values(), *guesser.values()] == [pytest.approx(1 / 3, abs=0.08)] * 7


def test_training_shares_no_deal_no_theme_and_no_size_with_testing():
    found = {}
    for split, rows in (("train", 144), ("test", 288)):
        manifest = read_manifest(DATA / f"{split}.parquet", verify=True)
        assert set(manifest["counts"]["light_and_answer"].values()) == {rows // 9}
        facts = pq.read_table(DATA / f"{split}.parquet", columns=["extra_info"])["extra_info"].to_pylist()
        found[split] = [{each["deal"] for each in facts}, {each["theme"] for each in facts}]
        found[split].append({(each["width"], each["height"]) for each in facts})
        assert len(found[split][0]) == rows
    assert not any(train & test for train, test in zip(found["train"], found["test"], strict=True))


def test_the_shipped_files_are_those_of_the_manifest_and_of_the_code(processor):
    manifest = json.loads((TINY / "manifest.json").read_text())
    assert {path.name for path in TINY.iterdir()} == {*manifest["sha256"], "manifest.json"}
    for name, digest in manifest["sha256"].items():
        assert hashlib.sha256((TINY / name).read_bytes()).hexdigest() == digest, name
    assert manifest["bytes"] == sum((TINY / name).stat().st_size for name in manifest["sha256"]) <= 6 * 2**20
    shape = manifest["plan"].pop("shape")
    assert manifest["plan"] == SPEC.plan.as_dict()
    model, made = SPEC.build(replace(SPEC.plan, seed=3))
    assert made.tokenizer.get_vocab() == processor.tokenizer.get_vocab()
    assert made.chat_template == processor.chat_template
    assert model.config.vision_config.hidden_size == shape["vision"]
    assert (model.dtype, model.num_parameters()) == (torch.float32, manifest["parameters"])
    held_out = manifest["held_out"]
    assert 0.45 <= held_out["greedy_pass@1"] <= 0.65, "GRPO needs room"
    assert held_out["mixed_groups"] > 0.3, "GRPO learns from groups that disagree"
    assert all(share < 0.42 for name, share in held_out["ablation"].items() if name != "as shown")


def test_texts_come_back_and_the_recipe_leaves_room_for_prompt_and_response(processor, shown):
    tokenizer = processor.tokenizer
    for text in (QUESTION, *phrases(), "7 ≠ 8\t“数字”", "Answer: 12"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    data = load("number_game", environ={}, hardware="cpu").data
    areas = {each.image.width * each.image.height: each.image for each in shown}
    assert data.min_pixels <= min(areas) <= max(areas) <= data.max_pixels
    assert pretraining.inputs(processor, [areas[max(areas)]])["input_ids"].shape[1] <= data.max_prompt_length
    assert max(len(tokenizer.encode(text)) for text in phrases()) < data.max_response_length


def test_the_shipped_model_reads(processor, shown):
    """On a few screenshots; the manifest has the figures of all."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.float32).eval()
    some = shown[::8]
    responses = SPEC.respond(model, processor, some, sample=False)
    reads = [text.startswith(careless(each.deal).split(".")[0]) for text, each in zip(responses, some, strict=True)]
    assert sum(reads) / len(some) > 0.8


def test_each_stage_teaches_its_parts_on_batches_that_the_tower_sees_as_single_pictures(shown):
    from PIL import Image

    from recipes.tasks.number_game.lessons import Lessons

    plan = replace(SPEC.plan, steps=5, glyphs=1, rows=1, rules=1, reading=1, cards=10, deals=4, batch=2)
    model, made = SPEC.build(plan)
    lessons = Lessons(plan, model, made, shown[:24])
    pile, tower = lessons.piles[0], model.model.visual
    with torch.no_grad():
        batch = pretraining.inputs(made, [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in pile.images])
        usual = tower(batch["pixel_values"], grid_thw=batch["image_grid_thw"]).pooler_output
        assert torch.allclose(lessons.see(pile.images.float()).flatten(0, 1), usual, atol=1e-5)
    parts = {"vision": tower, "text": model.model.language_model.layers}
    taught = [{"vision"}, {"vision"}, {"text"}, {"vision", "text"}, {"vision", "text"}]
    first = [lessons.loss(step).item() for step in range(5)]
    for step, names in enumerate(taught):
        model.zero_grad(set_to_none=True)
        loss = lessons.loss(step)
        loss.backward()
        assert loss.item() == pytest.approx(first[step]), "what is drawn depends on the step alone"
        assert names == {name for name, part in parts.items() if any(p.grad is not None for p in part.parameters())}


def test_the_first_layer_is_whitened_and_tokens_on_a_card_have_its_digit():
    from recipes.tasks.number_game.lessons import NOTHING, card_classes, whiten

    patches = torch.randn(5000, 3 * 14 * 14) @ torch.diag(torch.linspace(5, 0.1, 588)) + 3.0
    weight = torch.empty(16, 3, 2, 14, 14)
    whiten(weight, patches, floor=0.0)
    seen = patches @ weight.sum(2).flatten(1).T
    assert torch.allclose(seen.T @ seen / len(seen), torch.eye(16), atol=1e-3)
    cards = torch.tensor([[[0.0, 30, 50, 60], [50, 30, 90, 60], [90, 30, 140, 60]]])
    classes = card_classes((3, 84, 140), cards, torch.tensor([[8, 0, 4]])).view(3, 5)
    assert classes.tolist() == [[NOTHING] * 5, [8, 8, 0, 4, 4], [NOTHING] * 5]


def test_screenshots_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(RecipeError, match="there are no screenshots"):
        pretraining.read(tmp_path / "train.parquet", "train")
    with pytest.raises(RecipeError, match="is not the train split"):
        pretraining.read(DATA / "test.parquet", "train")
