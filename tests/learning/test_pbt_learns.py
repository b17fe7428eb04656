"""Population-based training finds a learning rate: most initial rates are too low, and all final rates work."""

from __future__ import annotations

from typing import Any

import pytest

from thespis import train
from thespis.population.history import History


@pytest.mark.timeout(120)
def test_members_that_cannot_learn_become_copies_of_one_that_can(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thespis.population.plot.draw_ancestry", lambda path: "")
    run = train(
        "pbt", on="simulation", member="a2c", env="CartPole-v1", population=4, total_steps=160_000, interval=5_000,
        settings=("optimizer.anneal=false",), eval_every=0.0, run_dir=stage.run, quiet=True,
    )  # fmt: skip
    history = History(run.path)
    rates = "optimizer.learning_rate"
    assert sum(row.after[rates] < 2e-4 for row in history.rows[:4]) == 3, (
        "these initial rates are too low to learn in this time"
    )
    assert all(member.hypers[rates] > 5e-4 for member in history.members.values())
    assert run.summary["eval_return_mean"] > 100
