"""Generation through a scripted server: concurrency, retries, refusals, and servers with habits of their own."""

from __future__ import annotations

import base64
import io

import pytest

from recipes.errors import RecipeError
from recipes.evaluation.openai_server import Server, ServerSampler
from recipes.evaluation.questions import load_questions, with_images
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.vllm_engine import Engine

SAMPLED = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=32, seed=0)


@pytest.fixture
def ask(server, make_data):
    """Ask the server `count` questions; returns the groups by row, and keeps in `ask.got` those before a failure."""

    def run(count=1, sampling=SAMPLED, data=None, engine=None, **settings):
        settings = {"model": "tiny", "retries": 2} | settings
        sampler = ServerSampler(Server(server.api_base, **settings), engine or Engine())
        data = data or make_data(count)
        run.got = {}
        try:
            for group in sampler.generate(with_images(data, load_questions(data)), sampling):
                run.got[group.row] = group
        finally:
            sampler.close()
        return run.got

    return run


def test_every_question_is_answered_n_times_with_bounded_concurrency(ask, server):
    server.slow = 0.02
    groups = ask(count=12, concurrency=3)
    assert sorted(groups) == list(range(12))
    assert server.most_running == 3
    for group in groups.values():
        group.check(4)
        for response in group.responses:
            assert response.tokens == len(response.text.split())
            assert response.logprob == pytest.approx(-0.5 * response.tokens)
            assert response.finish == "stop"
    sent = server.requests[0]
    assert (sent["n"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == (4, 1.0, 1.0, 32)
    assert sent["path"] == "/v1/chat/completions"
    assert {request["seed"] for request in server.requests} == {SAMPLED.request_seed(row) for row in range(12)}


@pytest.mark.parametrize("statuses", [[500, 429], [408, 0]])
def test_what_passes_is_tried_again(ask, server, statuses):
    server.statuses = list(statuses)
    assert len(ask()) == 1
    assert len(server.requests) == len(statuses) + 1


@pytest.mark.parametrize("address", ["notaurl", "localhost:8000/v1", "http://"])
def test_an_address_that_is_no_url_is_not_tried(address):
    with pytest.raises(RecipeError) as error:
        ServerSampler(Server(address, "tiny"), Engine())
    assert error.value.where == address


@pytest.mark.parametrize(("status", "fix"), [(401, "OPENAI_API_KEY"), (404, "/v1"), (400, "--rollout_n")])
def test_a_refusal_is_not_tried_again_and_leads_to_what_may_be_wrong(ask, server, status, fix):
    server.statuses = [status]
    with pytest.raises(RecipeError) as error:
        ask()
    assert f"scripted {status}" in error.value.what
    assert len(server.requests) == 1
    assert fix in error.value.fix


def test_what_is_done_at_a_failure_is_kept(ask, server):
    server.die_after = 5
    with pytest.raises(RecipeError) as error:
        ask(count=12, concurrency=2)
    assert error.value.where == server.api_base
    assert len(ask.got) == 5


def test_a_server_that_gives_fewer_choices_is_asked_for_the_rest(ask, server):
    server.most_choices = 1
    assert all(len(group.responses) == 4 for group in ask(count=2).values())
    seeds = [one["seed"] for one in server.requests if one["messages"][0]["content"].startswith("What is 1")]
    assert seeds == [SAMPLED.request_seed(1) + already for already in range(4)]


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"top_p": 0.9}, {"temperature": 0.0, "n": 1}])
def test_log_probabilities_of_another_distribution_give_no_entropy(ask, changes):
    sampling = Sampling(**({"n": 4, "temperature": 1.0, "top_p": 1.0, "max_tokens": 32} | changes))
    response = ask(sampling=sampling)[0].responses[0]
    assert response.logprob is None
    assert response.tokens > 0


@pytest.mark.parametrize(("logprob", "shown"), [(float("nan"), "nan"), (None, "nan"), (-9999.0, "-inf")])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_broken_log_probabilities_are_found_at_any_temperature(ask, server, logprob, shown, temperature):
    server.logprob = logprob
    group = ask(sampling=Sampling(n=2, temperature=temperature, max_tokens=8))[0]
    with pytest.raises(RecipeError) as error:
        group.check(2)
    assert shown in error.value.what


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": []},
        {"detail": "Not Found"},
        {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}]},
        [],
        {"choices": [{"message": {"content": "", "reasoning": "0 and 0"}}]},
    ],
    ids=str,
)
def test_replies_that_cannot_be_scored(ask, server, reply):
    server.reply = lambda request: reply
    with pytest.raises(RecipeError) as error:
        ask()
    assert error.value.where in (server.api_base, "--api_base")


def test_images_travel_as_data_urls_where_they_belong(ask, server, make_data, make_row):
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(picture, "PNG")
    server.models = [{"id": "tiny", "owned_by": "vllm"}]
    server.reply = lambda request: {"choices": [server.choice("<answer>6</answer>")] * 4}
    prompt = [{"role": "user", "content": "What is 3 + 3? See <image> here"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": picture.getvalue()}])])
    ask(data=data, engine=Engine(min_pixels=3136, max_pixels=200704))[0].check(4)
    (request,) = server.requests
    before, image, after = request["messages"][0]["content"]
    assert (before["text"], after["text"]) == ("What is 3 + 3? See ", " here")
    kind, _, encoded = image["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(encoded) == picture.getvalue()
    assert request["mm_processor_kwargs"] == {"min_pixels": 3136, "max_pixels": 200704}
