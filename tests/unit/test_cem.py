"""The cross-entropy method against known optima, and the layout of its vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from thespis.algorithms.qtopt import QTOpt
from thespis.architectures import qtopt
from thespis.core.errors import ThespisError
from thespis.core.types import Array
from thespis.envs.spaces import action_row, env_actions, refuse_composite_actions
from thespis.networks.cem import ActionParts, every_choice, search, split, uniform
from thespis.networks.configs import CEMConfig, QFunctionConfig
from thespis.networks.q_function import ActionEncoding, action_parts_of

PAPER = CEMConfig()


def test_the_peak_of_a_parabola() -> None:
    actions, values = search(lambda a: -((a[..., 0] - 0.3) ** 2), 1000, ActionParts(1), PAPER, np.random.default_rng(0))
    errors = np.abs(actions[:, 0] - 0.3)
    assert errors.mean() < 0.005 and errors.max() < 0.15
    np.testing.assert_allclose(values, -(errors**2), atol=1e-6)


@pytest.mark.parametrize("peak", [-1.0, 1.0])
def test_an_optimum_at_the_bound_is_found_exactly(peak: float) -> None:
    actions, _ = search(lambda a: a.sum(-1) * peak, 50, ActionParts(1), PAPER, np.random.default_rng(0))
    assert (actions == peak).all()


def test_every_row_has_an_optimum_of_its_own() -> None:
    peaks = np.random.default_rng(1).uniform(-0.9, 0.9, (200, 1, 3)).astype(np.float32)
    wide = CEMConfig(samples=128, iterations=6, elites=10)
    actions, _ = search(lambda a: -((a - peaks) ** 2).sum(-1), 200, ActionParts(3), wide, np.random.default_rng(0))
    assert np.abs(actions - peaks[:, 0]).mean() < 0.02


def test_more_iterations_are_never_worse_than_the_best_sample_so_far() -> None:
    def score(a: Array) -> Array:
        return np.sin(20.0 * a[..., 0]) - np.abs(a[..., 0])

    best = [
        search(score, 100, ActionParts(1), CEMConfig(iterations=number), np.random.default_rng(3))[1]
        for number in (1, 2, 4)
    ]
    assert (best[1] >= best[0]).all() and (best[2] >= best[1]).all()


def test_few_choices_are_all_scored() -> None:
    table = np.random.default_rng(0).standard_normal((500, 12)).astype(np.float32)
    parts = ActionParts(0, (3, 4))
    asked = []

    def score(a: Array) -> Array:
        asked.append(a.shape)
        first, second = (part.argmax(-1) for part in split(a, parts))
        return np.take_along_axis(table, 4 * first + second, 1)

    actions, values = search(score, 500, parts, PAPER, np.random.default_rng(0))
    assert asked == [(500, 12, 7)] and len(every_choice(parts)) == 12
    np.testing.assert_array_equal(values, table.max(1))
    first, second = (part.argmax(-1) for part in split(actions, parts))
    np.testing.assert_array_equal(4 * first + second, table.argmax(1))


def test_many_choices_are_searched() -> None:
    """4,096 actions, far more than samples; the value is a sum over the six choices."""
    wanted = np.random.default_rng(0).integers(0, 4, (100, 1, 6))
    parts, cfg = ActionParts(0, (4,) * 6), CEMConfig(samples=64, iterations=5, elites=8)

    def score(a: Array) -> Array:
        chosen = np.stack([part.argmax(-1) for part in split(a, parts)], -1)
        return (chosen == wanted).sum(-1).astype(np.float32)

    _, right = search(score, 100, parts, cfg, np.random.default_rng(0))
    assert right.mean() > 5.8


def test_numbers_and_choices_together() -> None:
    """The best number depends on the choice, and one choice is best."""
    parts, peaks = ActionParts(1, (3,)), np.array([-0.5, 0.2, 0.7], np.float32)

    def score(a: Array) -> Array:
        return a[..., 2] - (a[..., 0] - a[..., 1:] @ peaks) ** 2

    actions, _ = search(score, 500, parts, PAPER, np.random.default_rng(0))
    assert (actions[:, 2] == 1.0).all() and (actions[:, 1:].sum(1) == 1.0).all()
    assert np.abs(actions[:, 0] - 0.2).mean() < 0.02


def test_any_actions_cover_the_space() -> None:
    actions = uniform(4000, ActionParts(2, (3,)), np.random.default_rng(0))
    assert actions[:, :2].min() < -0.99 and actions[:, :2].max() > 0.99
    np.testing.assert_allclose(actions[:, 2:].mean(0), 1 / 3, atol=0.05)


MIXED = spaces.Dict({"gripper": spaces.Discrete(3, start=1), "move": spaces.Box(-2.0, 4.0, (2,), np.float32)})


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        (spaces.Discrete(4, start=7), ActionParts(0, (4,))),
        (spaces.MultiDiscrete([2, 3]), ActionParts(0, (2, 3))),
        (spaces.Box(-1, 1, (2, 2)), ActionParts(4)),
        (MIXED, ActionParts(2, (3,))),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, ()), spaces.Discrete(5))), ActionParts(1, (2, 5))),
    ],
)
def test_vectors_and_actions_are_each_other_s_inverse(space: spaces.Space[object], parts: ActionParts) -> None:
    code = ActionEncoding(space)
    assert code.parts == parts
    vectors = uniform(20, parts, np.random.default_rng(0))
    actions = code.decode(vectors)
    assert actions.shape == (20, *action_row(space).shape) and actions.dtype == action_row(space).dtype
    np.testing.assert_array_equal(code.encode(torch.from_numpy(actions)).numpy(), vectors)
    taken = list(env_actions(space)(actions))
    assert all(space.contains(action) for action in taken)


def test_an_action_of_several_parts_as_the_environment_takes_it() -> None:
    vectors = np.array([[-1.0, 1.0, 2.0], [0.0, 0.5, 0.0]], np.float32)
    actions = list(env_actions(MIXED)(vectors))
    assert [action["gripper"] for action in actions] == [3, 1]
    np.testing.assert_allclose([action["move"] for action in actions], [[-2.0, 4.0], [1.0, 2.5]])
    assert all(MIXED.contains(action) for action in actions)
    pair = spaces.Tuple((spaces.Discrete(2), spaces.Box(0.0, 1.0, (1,), np.float32)))
    assert all(pair.contains(action) for action in env_actions(pair)(np.array([[0.0, 1.0]], np.float32)))


@pytest.mark.parametrize(
    ("space", "what"),
    [
        (spaces.Box(-np.inf, np.inf, (1,)), "have none"),
        (spaces.Box(0, 5, (1,), np.int64), "cannot be searched"),
        (spaces.MultiBinary(3), "cannot be searched"),
        (spaces.Tuple((spaces.Tuple((spaces.Discrete(2),)), spaces.Discrete(2))), "not supported"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-np.inf, 1, (1,))}), "have none"),
    ],
)
def test_what_cannot_be_searched_is_refused(space: spaces.Space[object], what: str) -> None:
    with pytest.raises(ThespisError, match=what):
        action_parts_of(space)


def test_who_knows_no_parts_refuses_them() -> None:
    with pytest.raises(ThespisError, match="only qtopt learns"):
        refuse_composite_actions(MIXED)
    refuse_composite_actions(spaces.Discrete(2))


@pytest.mark.parametrize("settings", [{"elites": 0}, {"elites": 65}, {"iterations": 0}, {"floor": 0.0}])
def test_searches_that_cannot_be(settings: dict[str, float]) -> None:
    with pytest.raises(ThespisError, match="--network.cem"):
        qtopt.Config(algorithm=QTOpt(network=QFunctionConfig(cem=CEMConfig(**settings))))  # type: ignore[arg-type]
