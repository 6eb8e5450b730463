"""Generation through a scripted server: concurrency, retries, refusals, and images."""

import base64
import io
from contextlib import closing
from threading import Barrier

import pytest

from recipes.evaluation.openai_server import Server, ServerSampler
from recipes.evaluation.questions import load_questions, with_images
from recipes.evaluation.vllm_engine import Engine
from recipes.responses.measures import Sampling
from tests.mistakes import mistake

SAMPLED = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=32, seed=0)
BOUNDS = {"min_pixels": 3136, "max_pixels": 200704}


@pytest.fixture
def ask(server, make_data):
    """Ask the server `count` questions; returns the groups by row."""

    def run(count=1, data=None, engine=None, model="tiny", **settings):
        data = data or make_data(count)
        with closing(ServerSampler(Server(server.api_base, model, **settings), engine or Engine())) as sampler:
            return {each.row: each for each in sampler.generate(with_images(data, load_questions(data)), SAMPLED)}

    return run


def test_every_question_is_answered_n_times_with_bounded_concurrency(ask, server):
    server.meet = Barrier(3, timeout=30).wait  # each request waits for two others
    groups = ask(count=12, concurrency=3)
    assert list(groups) == list(range(12))
    assert server.most_running == 3
    for group in groups.values():
        assert len(group.responses) == 4
        assert all(each.tokens == len(each.text.split()) and not each.truncated for each in group.responses)
    assert len({each.text for group in groups.values() for each in group.responses}) > 12, "a group's seeds differ"
    sent = server.requests[0]
    assert (sent["path"], sent["temperature"], sent["top_p"]) == ("/v1/chat/completions", 1.0, 1.0)
    assert sent["max_tokens"] == 32
    seeds = {SAMPLED.request_seed(row) + sample for row in range(12) for sample in range(4)}
    assert {request["seed"] for request in server.requests} == seeds


def test_a_servers_own_defaults_of_sampling_are_switched_off_where_it_has_some(ask, server):
    ask()
    assert "top_k" not in server.requests[-1]
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    ask(engine=Engine(template_arguments={"enable_thinking": False}))
    assert (server.requests[-1]["top_k"], server.requests[-1]["repetition_penalty"]) == (-1, 1.0)
    assert server.requests[-1]["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize("statuses", [[500, 429], [408, 0]])
def test_what_passes_is_tried_again(ask, server, statuses):
    server.statuses = list(statuses)
    assert len(ask(concurrency=1)) == 1
    assert len(server.requests) == len(statuses) + 4


def test_what_cannot_be_asked_is_named(ask, server):
    place = "localhost:8000/v1"
    assert mistake(lambda: ServerSampler(Server(place, "tiny"), Engine())).where == place
    assert "tiny" in mistake(lambda: ask(model="other")).fix
    error = mistake(lambda: ask(engine=Engine(template_arguments={"enable_thinking": False})))
    assert "data.apply_chat_template_kwargs" in error.where
    server.statuses = [401]
    assert "OPENAI_API_KEY" in mistake(lambda: ask(concurrency=1), "scripted 401").fix
    server.statuses = [400]
    assert "change what it names" in mistake(lambda: ask(concurrency=1), "scripted 400").fix


@pytest.mark.parametrize(
    "reply",
    [{"choices": []}, {"detail": "Not Found"}, {"choices": [{"message": {"content": "", "reasoning": "0 and 0"}}]}],
    ids=str,
)
def test_replies_that_cannot_be_scored(ask, server, reply):
    server.reply = lambda request: reply
    assert mistake(ask).where in (server.api_base, "--api_base")


def test_images_travel_as_data_urls_where_they_belong(ask, server, make_data, make_row):
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(picture, "PNG")
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    server.reply = lambda request: {"choices": [{"message": {"content": "<answer>6</answer>"}}]}
    prompt = [{"role": "user", "content": "What is 3 + 3? See <image> here"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": picture.getvalue()}])])
    assert len(ask(data=data, engine=Engine(processor=BOUNDS))[0].responses) == 4
    request = server.requests[0]
    before, image, after = request["messages"][0]["content"]
    assert (before["text"], after["text"]) == ("What is 3 + 3? See ", " here")
    kind, _, encoded = image["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(encoded) == picture.getvalue()
    assert request["mm_processor_kwargs"] == BOUNDS
    of_easyr1 = Engine(processor={"min_pixels": 784}, of_easyr1=True)
    ask(data=data, engine=of_easyr1)
    request = server.requests[-1]
    shown = request["messages"][0]["content"][1]["image_url"]["url"].partition(";base64,")[2]
    assert Image.open(io.BytesIO(base64.b64decode(shown))).size == (28, 28), "it is resized here, as EasyR1 does"
    assert "mm_processor_kwargs" not in request
