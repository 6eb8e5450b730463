"""A worked answer, `extra_info.solution`: a text, or messages of assistant and tool; and the part that is trained."""

import json
from typing import Any

from recipes.written import written

OF_TRAINER = {
    "worker.actor.optim.lr": "optim.lr",
    "trainer.total_epochs": "trainer.total_epochs",
    "trainer.max_steps": "trainer.total_training_steps",
    "data.rollout_batch_size": "data.train_batch_size",
    "trainer.experiment_name": "trainer.experiment_name",
}
"""Key of a recipe -> key of verl's supervised trainer that its variable and option set in its place."""

Message = dict[str, Any]


def messages_of(solution: Any) -> list[Message]:
    """The messages of a worked answer, which begin and end with the model's turn; empty where it has not this form.

    Parquet gives every struct of a column the keys of all, as null: a call's arguments are kept without these. A turn
    that is a call alone has an empty text, which chat templates read; arguments that are JSON's text, an object.
    """
    if isinstance(solution, str):
        return [{"role": "assistant", "content": solution}] if solution.strip() else []
    messages = [{"content": "", **without_nulls(each)} for each in solution or [] if isinstance(each, dict)]
    for call in (call for each in messages for call in each.get(TOOL_CALLS, []) if isinstance(call, dict)):
        made: Message = call["function"] if isinstance(call.get("function"), dict) else call
        made["arguments"] = written(made.get("arguments"))
    roles = [message.get("role") for message in messages]
    ends, are_texts = {*roles[:1], *roles[-1:]}, all(isinstance(each["content"], str) for each in messages)
    return messages if ends == {"assistant"} and set(roles) <= {"assistant", "tool"} and are_texts else []


def last_text(solution: Any) -> str:
    """The text that a reward judges of a worked answer: its own, or the model's last turn."""
    return "".join(message["content"] for message in messages_of(solution)[-1:])


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


TOOL_CALLS = "tool_calls"


def packed(messages: list[Message]) -> list[Message]:
    """Messages for a column of parquet: their calls as texts."""
    return [{**each, TOOL_CALLS: json.dumps(each[TOOL_CALLS])} if each.get(TOOL_CALLS) else each for each in messages]


def unpacked(messages: list[Message]) -> list[Message]:
    """The messages that `packed` was given."""
    kept = without_nulls(messages)
    return [{**each, TOOL_CALLS: json.loads(each[TOOL_CALLS])} if TOOL_CALLS in each else each for each in kept]


def answer_spans(tokenizer: Any, messages: list[Message], template: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Tokens of a conversation, and 1 for each that the model is to write: its turns after the user's last message.

    Args:
        template: further arguments of the chat template, `tools` among them.

    Raises:
        ValueError: the beginning of the conversation has other tokens when it goes on, so that no turn can be found.
    """
    template = {**template, "tokenize": True, "return_dict": False}
    ids = tokenizer.apply_chat_template(messages, **template)
    mask = [0] * len(ids)
    first = 1 + max(n for n, message in enumerate(messages) if message["role"] not in ("assistant", "tool"))
    for number in range(first, len(messages)):
        if messages[number]["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(messages[:number], add_generation_prompt=True, **template)
        begin = len(before)
        if ids[:begin] != before:
            raise ValueError("with its answer, the chat template writes the prompt itself in other tokens")
        end = len(ids)
        if number + 1 < len(messages):
            if tokenizer.eos_token_id not in ids[begin:]:
                raise ValueError(f"the chat template does not end a turn by {tokenizer.eos_token}")
            end = ids.index(tokenizer.eos_token_id, begin) + 1
        mask[begin:end] = [1] * (end - begin)
    return ids, mask
