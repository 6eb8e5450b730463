"""vLLM's answers to verl: a response's token ids once they are all there, instead of text and a list after each token.

verl uses the last answer to a request alone (verl/workers/rollout/vllm_rollout/vllm_async_server.py:683
(`final_res = output`)), and of it the token ids and log-probabilities. By default vLLM answers after each token: it
decodes text, lists all tokens so far, and wakes the task that waits. For 256 responses of 1,024 tokens this took 8.5 s
of processor time in one process, about as long as a 4B model on an H200 generates; here it takes 2.5 s.

vLLM has a setting for it, `RequestOutputKind.FINAL_ONLY`. But verl needs the first answer too: it tells that the
request was admitted (verl/workers/rollout/vllm_rollout/vllm_async_server.py:682 (`self._admitting -= 1`)), and where
verl aborts requests it waits up to 60 s for that. With `stream_interval` vLLM would answer at the first token and at
the last, if its condition vllm/v1/engine/output_processor.py:304 (`self.sent_tokens_offset == 0`) did not stay true for
the answers that verl asks for.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from recipes.engines.transfer_sockets import SERVER


def register() -> None:
    """Apply both patches, in a process that has imported verl's server; others do not need them."""
    if SERVER in sys.modules:
        leave_out_text()
        answer_first_and_last()


@functools.cache
def leave_out_text() -> None:
    """Have verl's server ask for no text, except for requests that end at a given text (`stop`)."""
    from verl.workers.rollout.vllm_rollout import vllm_async_server

    ordinary = vllm_async_server.SamplingParams

    def sampling_params(**given: Any) -> Any:
        return ordinary(**{"detokenize": bool(given.get("stop")), **given})

    vllm_async_server.SamplingParams = sampling_params


@functools.cache
def answer_first_and_last() -> None:
    """Have vLLM answer a request that asks for all tokens so far at its first token and at its end, also if aborted."""
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.output_processor import RequestState

    ordinary = RequestState.make_request_output

    @functools.wraps(ordinary)
    def make_request_output(
        self: Any, new_token_ids: list[int], pooling_output: Any, finish_reason: Any, *rest: Any, **named: Any
    ) -> Any:
        if self.output_kind is RequestOutputKind.CUMULATIVE and finish_reason is None:
            if getattr(self, "answered", False):
                return None
            self.answered = True
        return ordinary(self, new_token_ids, pooling_output, finish_reason, *rest, **named)

    RequestState.make_request_output = make_request_output
