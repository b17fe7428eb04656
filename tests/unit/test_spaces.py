"""Action spaces: their elements, and the meaning of a policy's actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, MultiDiscrete

from thespis.envs.spaces import FastMultiDiscrete, env_actions


@pytest.mark.parametrize("start", [[0, 0, 0], [1, 0, -2]])
def test_choices_contain_what_gymnasium_says(start: list[int]) -> None:
    space = MultiDiscrete([2, 3, 4], start=start)
    quick = FastMultiDiscrete(space)
    assert quick == space
    candidates: list[Any] = [np.array([a, b, c]) for a in (-1, 0, 2) for b in (0, 2, 3) for c in (-2, 1, 3, 4)]
    candidates += [np.zeros(2, np.int64), np.zeros(3, np.int32), np.ones(3), [1, 1, 1], "no", None]
    assert [quick.contains(value) for value in candidates] == [space.contains(value) for value in candidates]
    assert any(map(quick.contains, candidates)) and not all(map(quick.contains, candidates))


def test_bounded_actions_are_stretched_and_clipped_and_unbounded_ones_are_not() -> None:
    space = Box(np.array([0.0, -4.0, -np.inf, 1.0]), np.array([10.0, 2.0, np.inf, np.inf]), dtype=np.float64)
    convert = env_actions(space)
    rows = np.array([[-1, -1, -1, -1], [0, 0, 0, 0], [1, 1, 7, 7], [9, -9, -50, 2]], np.float32)
    expected = [[0, -4, -1, 1], [5, -1, 0, 1], [10, 2, 7, 7], [10, -4, -50, 2]]
    assert convert(rows).tolist() == expected
    assert convert(rows).dtype == np.float64
