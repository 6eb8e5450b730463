"""verl's agent loop with tools, in `Conversation`'s turns; verl finds it under the name of its own, `tool_agent`."""

from __future__ import annotations

import asyncio
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
from verl.utils.profiler import simple_timer

from recipes.dumps import CONVERSATION
from recipes.engines.verl.conversation import Conversation, Rules
from recipes.engines.verl.tools import Tools, given

_rules: Rules | None = None
"""The rules of this process's model, made by its first response: verl makes a loop for each."""


@register("tool_agent")
class ToolLoop(ToolAgentLoop):
    """verl's loop, with tools that cannot stop a worker, every call of a turn run, and the template's own tokens."""

    def __init__(self, *args: Any, tools: Any = None, hf_model_type: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, tools=tools, hf_model_type=hf_model_type, **kwargs)
        global _rules
        if _rules is None:
            _rules = Rules.of(
                self.tokenizer,
                Tools(tools.tools, given()),
                self.rollout_config.prompt_length,
                self.rollout_config.response_length,
                model_type=hf_model_type,
                template_arguments=self.apply_chat_template_kwargs,
            )
        self._rules = _rules

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Generate and call until the response has ended."""
        rules, metrics = self._rules, {"num_preempted": 0}
        extra: dict[str, Any] = {}
        if rules.parser.stop_token_ids:
            sampling_params = {**sampling_params, "stop_token_ids": rules.parser.stop_token_ids}
        conversation = await self.loop.run_in_executor(None, Conversation, rules, list(kwargs["raw_prompt"]))
        request = self._make_request_id(priority, self.rollout_config.full_determinism)
        while not conversation.ended:
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=request, prompt_ids=conversation.tokens, sampling_params=sampling_params
                )
            metrics["num_preempted"] += output.num_preempted or 0
            extra = {**output.extra_fields, **extra, **_newest(output.extra_fields)}
            calls = await conversation.hear(output.token_ids, output.log_probs or None)
            if calls:
                with simple_timer("tool_calls", metrics):
                    waiting = [rules.tools.call(call.name, call.arguments) for call in calls]
                    answers = await asyncio.gather(*map(asyncio.wrap_future, waiting))
                conversation.answer(answers)
        return AgentLoopOutput(
            prompt_ids=conversation.prompt,
            response_ids=conversation.response,
            response_mask=conversation.mask,
            response_logprobs=conversation.log_probs,
            num_turns=len(conversation.turns) + 1,
            metrics=metrics,
            extra_fields={
                **extra,
                "turn_scores": [],
                "tool_rewards": [],
                CONVERSATION: {**conversation.facts, "last_text": conversation.last_text},
            },
        )


def _newest(fields: dict[str, Any]) -> dict[str, Any]:
    """The step of the newest weights that wrote a part of the response."""
    return {name: fields[name] for name in ("max_global_steps",) if fields.get(name)}
