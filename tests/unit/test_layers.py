"""Layers in numpy against torch's own, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thespis.networks.heads import Categorical
from thespis.networks.numpy.mlp import heads_forward, mlp_forward, use_numpy

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def _parameters(layers: list[nn.Linear]) -> list[Tensor]:
    return [parameter for layer in layers for parameter in layer.parameters()]


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(64,), (32, 64), (16, 64, 8)])
def test_layers_give_what_torch_gives(activation: str, hidden: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(before, after) for before, after in zip((5, *hidden[:-1]), hidden, strict=True)]
    x = torch.randn(200, 5, requires_grad=True)
    assert use_numpy(x, max(hidden))
    act = torch.tanh if activation == "tanh" else torch.relu
    plain = x
    for layer in layers:
        plain = act(layer(plain))
    ours = mlp_forward(x, layers, activation)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    seed = torch.randn_like(plain)
    wanted = [x, *_parameters(layers)]
    found, expected = (torch.autograd.grad(output, wanted, seed) for output in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_layers_can_be_differentiated_twice(activation: str, wants: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 64), nn.Linear(64, 16)]
    x = torch.randn(200, 5, requires_grad=wants)
    act = torch.tanh if activation == "tanh" else torch.relu
    plain = act(layers[1](act(layers[0](x))))
    wanted = [*([x] if wants else []), *_parameters(layers)]
    vector = [torch.randn_like(tensor) for tensor in wanted]

    def curved(output: Tensor) -> tuple[Tensor, ...]:
        slopes = torch.autograd.grad((output**3).mean(), wanted, create_graph=True)
        pairs = zip(slopes, vector, strict=True)
        return torch.autograd.grad(torch.stack([(slope * part).sum() for slope, part in pairs]).sum(), wanted)

    torch.testing.assert_close(curved(mlp_forward(x, layers, activation)), curved(plain), rtol=1e-3, atol=1e-5)


def test_an_input_that_wants_no_gradient_gets_none() -> None:
    layer = nn.Linear(5, 64)
    output = mlp_forward(torch.randn(100, 5), [layer], "tanh")
    gradients = torch.autograd.grad(output.sum(), list(layer.parameters()))
    assert [tuple(gradient.shape) for gradient in gradients] == [(64, 5), (64,)]


def test_heads_give_what_torch_gives_also_where_one_is_not_used() -> None:
    torch.manual_seed(0)
    heads = [nn.Linear(64, 3), nn.Linear(64, 1)]
    features = torch.randn(100, 64, requires_grad=True)
    assert use_numpy(features, 64)
    ours, plain = heads_forward(features, heads), [head(features) for head in heads]
    torch.testing.assert_close(list(ours), plain, rtol=1e-5, atol=1e-6)
    wanted = [features, *_parameters(heads)]
    found, expected = (torch.autograd.grad((2 * a).sum() + b.sum(), wanted) for a, b in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    (only,) = torch.autograd.grad(heads_forward(features, heads)[1].sum(), [features])
    torch.testing.assert_close(only, heads[1].weight.expand_as(features))


def test_few_rows_other_types_and_many_rows_for_several_threads_are_left_to_torch() -> None:
    assert not use_numpy(torch.zeros(2, 4), 64)
    assert not use_numpy(torch.zeros(1000, 4, dtype=torch.float64), 64)
    assert use_numpy(torch.zeros(10_000, 4), 64)
    torch.set_num_threads(2)
    assert use_numpy(torch.zeros(1000, 4), 64) and not use_numpy(torch.zeros(10_000, 4), 64)


@pytest.mark.parametrize("actions", [2, 18])
def test_a_choice_is_valued_as_torch_values_it(actions: int) -> None:
    torch.manual_seed(0)
    params = (5.0 * torch.randn(7, 9, actions)).requires_grad_()
    chosen = torch.randint(0, actions, (7, 9))
    logits = F.log_softmax(params, -1)
    plain = logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1), -(logits.exp() * logits).sum(-1)
    ours = Categorical(actions).evaluate(params, chosen)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    seeds = torch.randn(7, 9), torch.randn(7, 9)
    found, expected = (torch.autograd.grad(pair, params, seeds)[0] for pair in (ours, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    params = np.tile(np.log(np.array([0.5, 0.3, 0.2], np.float32)), (100_000, 1))
    actions, logp = Categorical(3).sample(params, np.random.default_rng(0))
    shares = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(shares, [0.5, 0.3, 0.2], atol=0.006)  # four standard deviations
    np.testing.assert_allclose(logp, params[0][actions], atol=1e-6)
    assert logp.dtype == np.float32


@pytest.mark.parametrize(("rows", "choices"), [(1, 2), (4, 2), (1, 7), (2, 3)])
def test_a_few_choices_are_drawn_as_many_are(rows: int, choices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    head, params = Categorical(choices), np.random.default_rng(0).normal(size=(300, rows, choices)).astype(np.float32)
    params[::10, :, 0] = -np.inf
    one, other = np.random.default_rng(1), np.random.default_rng(1)
    few = [head.sample(batch, one) for batch in params]
    monkeypatch.setattr("thespis.networks.heads._FEW", 0)
    many = [head.sample(batch, other) for batch in params]
    for (actions, logp), (expected, likely) in zip(few, many, strict=True):
        np.testing.assert_array_equal(actions, expected)
        np.testing.assert_allclose(logp, likely, rtol=1e-5, atol=1e-6)
        assert (actions.dtype, logp.dtype) == (expected.dtype, likely.dtype)


def test_what_is_impossible_is_never_drawn() -> None:
    params = np.tile(np.array([-1e4, 0.0, -1e4, 0.0, -1e4], np.float32), (10_000, 1))
    actions, logp = Categorical(5).sample(params, np.random.default_rng(0))
    assert set(actions.tolist()) == {1, 3}
    assert np.isfinite(logp).all()
