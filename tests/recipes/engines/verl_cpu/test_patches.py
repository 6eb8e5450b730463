"""Log-probabilities of many tokens at once are those of verl's loop."""

from __future__ import annotations

import pytest

from recipes.engines.verl_cpu import patches


@pytest.mark.parametrize("chunk", [1, 30, 1 << 22])
def test_log_probs_and_gradients_are_those_of_verls_loop(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    import torch
    from verl.utils import torch_functional

    row_by_row = torch_functional.logprobs_from_logits_v2
    monkeypatch.setattr(torch_functional, "logprobs_from_logits_v2", row_by_row)  # put back afterwards
    monkeypatch.setattr(patches, "CHUNK", chunk)
    patches.log_probs_of_many_tokens()
    logits, labels = 9 * torch.randn(17, 11), torch.randint(0, 11, (17,))
    results = []
    for function in (row_by_row, torch_functional.logprobs_from_logits_v2):
        given = logits.clone().requires_grad_()
        found = function(given, labels)
        (found * torch.arange(17)).sum().backward()
        results.append((found, given.grad))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=1e-6)
