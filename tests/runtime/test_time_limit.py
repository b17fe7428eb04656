"""--total-seconds under every runtime that needs no cluster, and what a run says of its processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thespis import train
from thespis.cli.main import main

pytestmark = pytest.mark.timeout(180)
SMALL: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "eval_every": 0.0, "quiet": True}


def test_the_simulation_stops_after_virtual_seconds(stage: Any) -> None:
    summary = train("impala", on="simulation", total_seconds=0.1, run_dir=stage.run, **SMALL).summary
    assert summary["exit_reason"] == "total_seconds" and summary["eval_episodes"] == 1
    assert 0.1 <= summary["wall_seconds"] < 0.4, "start-up, a report and the last evaluation are all that is on top"
    assert summary["processes"]["actor"] == {"roles": ["actor"], "count": 1, "cpu_seconds": None, "rss_mb": None}
    assert main(["resume", str(stage.run)]) == 2
    assert main(["resume", str(stage.run), "--total-seconds", "0.2"]) == 0
    assert json.loads((stage.run / "summary.json").read_text())["wall_seconds"] >= 0.2


def test_processes_stop_after_seconds_and_say_what_they_took(stage: Any) -> None:
    # Long enough for reports after the first update even where four such runs share two cores.
    summary = train("impala", total_seconds=4.0, total_steps=10**9, run_dir=stage.run, **SMALL).summary
    assert summary["exit_reason"] == "total_seconds"
    took = summary["processes"]
    assert {name: process["roles"] for name, process in took.items()} == {
        "hub": ["queue", "weights", "learner"], "actor": ["actor"], "evaluator": ["evaluator"],
    }  # fmt: skip
    for process in (took["hub"], took["actor"]):  # the others may not have been up by then
        assert 0.0 < process["cpu_seconds"] < 10 * summary["wall_seconds"] and 10.0 < process["rss_mb"] < 4000.0
    assert sum(summary["lag_counts"].values()) > 0
    assert 0.0 < sum(summary["roles"]["actor"]["busy"].values()) <= 1.0


def test_no_time_is_refused(capsys: Any) -> None:
    assert main(["train", "impala", "--total-seconds", "0"]) == 2
    assert "--total-seconds is 0.0; give more than 0 seconds" in capsys.readouterr().err
