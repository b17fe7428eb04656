"""Learners with shards solve the tasks of learners with whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from thespis import train

pytestmark = pytest.mark.timeout(600)
LAYOUTS = {
    "tensor": {"parallel": "tensor=2"},
    "pipeline": {"parallel": "pipeline=2"},
    "hybrid": {"parallel": "tensor=2", "learners": 2, "actors": 2},
}


def learn(place: Path, architecture: str = "impala", **settings: Any) -> dict[str, Any]:
    return train(architecture, quiet=True, run_dir=place / "run", **settings).summary


@pytest.mark.parametrize("on", ["simulation", "local"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_cartpole_is_solved(tmp_path: Path, layout: dict[str, Any], on: str) -> None:
    settings = {"env": "CartPole-v1", "envs_per_actor": 16, "stop_at_return": 475, "total_steps": 600_000, **layout}
    summary = learn(tmp_path, on=on, **settings)
    assert summary["exit_reason"] == "return_reached"
    assert summary["eval_return_mean"] >= 475


@pytest.mark.parametrize("on", ["simulation", "local"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_divided_lstm_remembers_the_cue(tmp_path: Path, layout: dict[str, Any], on: str) -> None:
    settings = {"env": "thespis/Memory-v0", "actors": 1, "network": {"lstm": 32}, "stop_at_return": 0.95}
    summary = learn(tmp_path, on=on, **settings | layout)
    assert summary["exit_reason"] == "return_reached"
    assert summary["eval_return_mean"] >= 0.9
