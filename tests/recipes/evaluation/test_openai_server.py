"""Generation through a scripted server: concurrency, retries, refusals, and servers with habits of their own."""

from __future__ import annotations

import base64
import io
import itertools

import openai._base_client
import pytest

from recipes.errors import RecipeError
from recipes.evaluation.openai_server import NEUTRAL, Server, ServerSampler
from recipes.evaluation.questions import load_questions, with_images
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.vllm_engine import Engine

SAMPLED = Sampling(n=4, temperature=1.0, top_p=1.0, max_tokens=32, seed=0)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)


@pytest.fixture
def ask(api_base, make_data):
    """Ask the server `count` questions; returns the groups by row."""

    def run(count=6, sampling=SAMPLED, **settings):
        sampler = ServerSampler(Server(api_base, **({"model": "tiny", "retries": 2} | settings)), Engine())
        try:
            return {group.row: group for group in sampler.generate(load_questions(make_data(count)), sampling)}
        finally:
            sampler.close()

    return run


def test_every_question_is_answered_n_times(ask, script):
    groups = ask()
    assert sorted(groups) == list(range(6))
    for group in groups.values():
        group.check(4)
        for response in group.responses:
            assert response.tokens == len(response.text.split())
            assert response.logprob == pytest.approx(-0.5 * response.tokens)
            assert response.finish == "stop"
    sent = script.requests[0]
    assert (sent["n"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == (4, 1.0, 1.0, 32)
    assert sent["path"] == "/v1/chat/completions"
    assert {request["seed"] for request in script.requests} == {SAMPLED.request_seed(row) for row in range(6)}


def test_no_more_requests_than_allowed_are_in_flight(ask, script):
    script.wait_for = 3
    ask(count=12, concurrency=3)
    assert script.most_running == 3


def test_requests_run_side_by_side(ask, script):
    script.wait_for = 8
    ask(count=8, concurrency=8)
    assert script.most_running == 8


@pytest.mark.parametrize("statuses", [[500, 503], [429], [0], [408, 0]])
def test_what_passes_is_tried_again(ask, script, statuses):
    script.statuses = list(statuses)
    assert len(ask(count=1)) == 1
    assert len(script.requests) == len(statuses) + 1


def test_pauses_grow(ask, script, monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.04)
    script.statuses = [500, 503, 429]
    ask(count=1, retries=3)
    pauses = [later - earlier for earlier, later in itertools.pairwise(script.times)]
    # The client takes up to a quarter off at random, so that many clients do not come back together.
    assert [pause >= 0.75 * 0.04 * 2**number for number, pause in enumerate(pauses)] == [True] * 3


def test_a_server_says_how_long_to_wait(ask, script):
    script.statuses, script.retry_after = [429], "0.3"
    ask(count=1, retries=1)
    assert script.times[1] - script.times[0] >= 0.3


def test_a_server_that_stays_away_ends_it(ask, script):
    script.statuses = [0] * 50
    with pytest.raises(RecipeError, match="did not answer, after 2 more tries") as found:
        ask(count=1)
    assert found.value.where.startswith("http://127.0.0.1")


def test_a_server_that_is_not_there(make_data):
    with pytest.raises(RecipeError, match="did not answer"):
        ServerSampler(Server("http://127.0.0.1:9/v1", "tiny", retries=0), Engine())


def test_a_refusal_is_not_tried_again(ask, script):
    script.statuses = [400]
    with pytest.raises(RecipeError, match="status 400: scripted 400"):
        ask(count=1)
    assert len(script.requests) == 1


@pytest.mark.parametrize(("status", "word"), [(401, "OPENAI_API_KEY"), (404, "/v1"), (400, "--rollout_n")])
def test_a_refusal_leads_to_what_may_be_wrong(ask, script, status, word):
    script.statuses = [status]
    with pytest.raises(RecipeError) as found:
        ask(count=1)
    assert word in found.value.fix


def test_groups_that_are_done_are_handed_over_before_a_failure(api_base, script, make_data):
    script.die_after = 5
    sampler = ServerSampler(Server(api_base, "tiny", concurrency=2, retries=1), Engine())
    got = []
    with pytest.raises(RecipeError, match="did not answer"):
        got.extend(group.row for group in sampler.generate(load_questions(make_data(12)), SAMPLED))
    sampler.close()
    assert len(got) == 5


def test_after_a_failure_what_is_in_flight_is_waited_for_and_nothing_new_is_asked(api_base, script, make_data):
    script.statuses = [400]
    script.slow = 0.3
    sampler = ServerSampler(Server(api_base, "tiny", concurrency=4, retries=0), Engine())
    got = []
    with pytest.raises(RecipeError, match="status 400"):
        got.extend(group.row for group in sampler.generate(load_questions(make_data(12)), SAMPLED))
    sampler.close()
    assert (len(got), len(script.requests)) == (3, 4)


def test_a_server_that_gives_fewer_choices_is_asked_for_the_rest(ask, script):
    script.most_choices = 1
    groups = ask(count=2)
    assert all(len(group.responses) == 4 for group in groups.values())
    seeds = [
        request["seed"] for request in script.requests if request["messages"][0]["content"].startswith("What is 1")
    ]
    assert seeds == [SAMPLED.request_seed(1) + already for already in range(4)]


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_the_models_own_sampling_defaults_are_switched_off(ask, script, owner):
    script.models = [{"id": "tiny", "owned_by": owner}]
    ask(count=1)
    assert {name: script.requests[0][name] for name in NEUTRAL} == NEUTRAL


def test_a_server_of_another_kind_is_sent_no_foreign_keys(ask, script):
    ask(count=1)
    assert not set(NEUTRAL) & set(script.requests[0])


def test_a_model_that_is_not_served_is_named(ask, script):
    script.models = [{"id": "other", "owned_by": "vllm"}]
    with pytest.raises(RecipeError, match="has no model tiny, but other"):
        ask(count=1)
    assert script.requests == []


@pytest.mark.parametrize("changes", [{"temperature": 0.7}, {"top_p": 0.9}, {"temperature": 0.0, "n": 1}])
def test_log_probabilities_of_another_distribution_give_no_entropy(ask, changes):
    sampling = Sampling(**({"n": 4, "temperature": 1.0, "top_p": 1.0, "max_tokens": 32} | changes))
    response = ask(count=1, sampling=sampling)[0].responses[0]
    assert response.logprob is None
    assert response.tokens > 0


@pytest.mark.parametrize(("logprob", "word"), [(float("nan"), "nan"), (None, "nan"), (-9999.0, "-inf")])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_broken_log_probabilities_are_found_at_any_temperature(ask, script, logprob, word, temperature):
    script.logprob = logprob
    group = ask(count=1, sampling=Sampling(n=2, temperature=temperature, max_tokens=8))[0]
    with pytest.raises(RecipeError, match=f"log-probability of response 0 to row 0 is {word}"):
        group.check(2)


def test_a_server_without_log_probabilities(ask, script):
    script.logprobs_known = False
    group = ask(count=1, logprobs=False)[0]
    assert script.requests[0]["logprobs"] is False
    assert {(response.tokens, response.logprob) for response in group.responses} == {(None, None)}


def test_usage_counts_the_tokens_of_a_lone_choice(ask, script):
    script.logprobs_known, script.most_choices = False, 1
    responses = ask(count=1)[0].responses
    assert all(response.tokens == len(response.text.split()) for response in responses)


def test_a_truncated_response_is_known(ask, script):
    script.finish = "length"
    assert all(response.truncated for response in ask(count=1)[0].responses)


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": []},
        {"choices": None},
        {"detail": "Not Found"},
        {"choices": [{"text": "a completion"}]},
        {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [{"token": "a"}]}}]},
    ],
)
def test_a_reply_that_is_no_chat_completion(ask, script, monkeypatch, reply):
    monkeypatch.setattr(type(script), "reply", lambda self, request: reply)
    with pytest.raises(RecipeError, match="reply to row 0 holds no chat completion"):
        ask(count=1)


def test_a_reply_that_is_no_object(ask, script, monkeypatch):
    monkeypatch.setattr(type(script), "reply", lambda self, request: [])
    with pytest.raises(RecipeError, match="no JSON object"):
        ask(count=1)


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_a_server_that_takes_the_thinking_out_is_refused(ask, script, monkeypatch, field):
    message = {"role": "assistant", "content": "<answer>0</answer>", field: "0 and 0 is 0"}
    monkeypatch.setattr(type(script), "reply", lambda self, request: {"choices": [{"message": message}] * 4})
    with pytest.raises(RecipeError, match="takes the thinking out") as found:
        ask(count=1)
    assert "reasoning parser" in found.value.fix


def test_images_travel_as_data_urls_where_they_belong(api_base, script, make_data, make_row):
    from PIL import Image

    picture = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(picture, "PNG")
    script.models = [{"id": "tiny", "owned_by": "vllm"}]
    prompt = [{"role": "user", "content": "What is 3 + 3? See <image> here"}]
    data = make_data(rows=[make_row(0, prompt=prompt, images=[{"bytes": picture.getvalue()}])])
    script.reply = lambda request: {"choices": [script._choice(number, "<answer>6</answer>") for number in range(4)]}
    sampler = ServerSampler(Server(api_base, "tiny"), Engine(min_pixels=3136, max_pixels=200704))
    (group,) = sampler.generate(with_images(data, load_questions(data)), SAMPLED)
    sampler.close()
    group.check(4)
    (request,) = script.requests
    before, image, after = request["messages"][0]["content"]
    assert (before["text"], after["text"]) == ("What is 3 + 3? See ", " here")
    kind, _, encoded = image["image_url"]["url"].partition(";base64,")
    assert kind == "data:image/png"
    assert base64.b64decode(encoded) == picture.getvalue()
    assert request["mm_processor_kwargs"] == {"min_pixels": 3136, "max_pixels": 200704}
