"""Log-probabilities and entropies in pieces: verl's values and gradients, few operations, little memory."""

from importlib.util import find_spec, module_from_spec
from types import ModuleType

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recipes.engines.verl import log_probs, upstream

TOKENS, HIDDEN, VOCABULARY = 37, 72, 501  # neither is divided by 128


@pytest.fixture(params=[1 << 22, 10 * VOCABULARY], ids=["one piece", "four pieces"])
def piece(request, monkeypatch):
    monkeypatch.setitem(log_probs.PIECE, "cpu", request.param)


def verls_own(module: str) -> ModuleType:
    """A module of verl's as it is without changes, which another test may have made."""
    spec = find_spec(module)
    fresh = module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


def drawn(tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    weight = torch.randn(VOCABULARY, HIDDEN) / 4
    return torch.randn(tokens, HIDDEN), weight, torch.randint(0, VOCABULARY, (tokens,))


def exact(hidden, weight, labels, temperature):
    """Both in float64, by their definitions."""
    log_p = (hidden.double() @ weight.double().t() / temperature).log_softmax(-1)
    return log_p.gather(-1, labels[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


def gradients(function, *leaves: torch.Tensor, weights=(1.0, 0.3)) -> list[torch.Tensor]:
    """Results, and the gradients of a sum of them with a weight for each token."""
    leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
    results = function(*leaves)
    each = torch.linspace(-1, 1, TOKENS)
    sum(weight * (each * result).sum() for weight, result in zip(weights, results, strict=False)).backward()
    return [*(result.detach() for result in results), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.usefixtures("piece")
def test_the_head_gives_exact_values_and_gradients(temperature):
    hidden, weight, labels = drawn()
    head = log_probs.FusedHead()
    found = gradients(lambda h, w: head(h[None], w, labels[None], temperature), hidden, weight)
    wanted = gradients(lambda h, w: exact(h, w, labels, temperature), hidden, weight)
    for value, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(value.view(right.shape), right.float(), rtol=1e-5, atol=2e-5)


@pytest.mark.usefixtures("piece")
def test_in_16_bits_the_head_is_no_further_from_the_truth_than_verls():
    theirs = verls_own("verl.utils.experimental.torch_functional").FusedLinearForPPO(chunk_size=10)
    hidden, weight, labels = (part.bfloat16() if part.is_floating_point() else part for part in drawn())
    wanted = gradients(lambda h, w: exact(h, w, labels, 1.0), hidden, weight)
    ours = gradients(lambda h, w: log_probs.FusedHead()(h, w, labels), hidden, weight)
    verls = gradients(lambda h, w: theirs(h, w, labels), hidden, weight)
    for value, bound_, right in zip(ours, verls, wanted, strict=True):
        error, bound = ((each.double() - right.double()).norm() for each in (value, bound_))
        assert error <= 1.05 * bound


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("piece")
def test_logits_give_verls_values_and_gradients(kind):
    hidden, weight, labels = drawn()
    logits = (hidden @ weight.t()).to(kind)
    functions = verls_own("verl.utils.torch_functional")

    def verls(x):
        x = x.float()  # as autocast does where logits have 16 bits
        return functions.logprobs_from_logits_v2(x, labels), functions.entropy_from_logits(x)

    def ours(x):
        return log_probs.of_logits(x, labels), log_probs.entropies(x)

    for value, right in zip(gradients(ours, logits), gradients(verls, logits), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5 if kind == torch.float32 else 8e-3, atol=1e-5)
    unchanged = (hidden @ weight.t()).to(kind)
    assert torch.equal(logits, unchanged)


class Operations(TorchDispatchMode):
    """Counts the operations, and the elements of the largest result."""

    count, largest = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.count += 1
        if isinstance(result, torch.Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize("path", ["logits", "head"])
def test_operations_do_not_grow_with_tokens_and_the_head_makes_no_more_than_a_piece(path, monkeypatch):
    """verl's own loop makes several for each token."""
    piece = 4096 * VOCABULARY
    monkeypatch.setitem(log_probs.PIECE, "cpu", piece)

    def operations(tokens: int) -> Operations:
        hidden, weight, labels = drawn(tokens)
        leaf = (hidden @ weight.t() if path == "logits" else hidden).requires_grad_()
        with Operations() as seen:
            if path == "logits":
                results = log_probs.of_logits(leaf, labels), log_probs.entropies(leaf)
            else:
                results = log_probs.FusedHead()(leaf, weight, labels)
            sum(result.sum() for result in results).backward()
        return seen

    few, many, pieces = operations(16), operations(4096), operations(4 * 4096)
    assert few.count == many.count < 100
    assert pieces.count <= 4 * many.count
    if path == "head":
        assert pieces.largest <= piece


def test_verl_computes_with_them():
    from verl.utils import torch_functional
    from verl.utils.experimental import torch_functional as heads

    upstream.log_probabilities()
    logits, labels = torch.randn(5, 11), torch.arange(5)
    assert torch.equal(torch_functional.logprobs_from_logits(logits, labels), log_probs.of_logits(logits, labels))
    assert isinstance(heads.FusedLinearForPPO(impl_backend="torch"), log_probs.FusedHead)
