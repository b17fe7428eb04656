"""--total-seconds under every runtime but Ray, and the report of a run on its processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thespis import train
from thespis.cli.main import main
from thespis.cli.train import parse_settings

pytestmark = pytest.mark.timeout(180)
SMALL: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 1, "eval_every": 0.0, "quiet": True}


def test_the_simulation_stops_after_virtual_seconds(stage: Any) -> None:
    summary = train("impala", on="simulation", total_seconds=0.1, run_dir=stage.run, **SMALL).summary
    assert summary["exit_reason"] == "total_seconds" and summary["eval_episodes"] == 1
    assert 0.1 <= summary["wall_seconds"] < 0.4, "only start-up, a report and the last evaluation may add time"
    assert summary["processes"]["actor"] == {"roles": ["actor"], "count": 1, "cpu_seconds": None, "rss_mb": None}
    assert main(["resume", str(stage.run)]) == 2
    assert main(["resume", str(stage.run), "--total-seconds", "0.2"]) == 0
    assert json.loads((stage.run / "summary.json").read_text())["wall_seconds"] >= 0.2


def test_processes_stop_after_seconds_and_say_what_they_took(stage: Any) -> None:
    # Long enough for reports after the first update, even if four such runs share two cores.
    summary = train("impala", total_seconds=4.0, total_steps=10**9, run_dir=stage.run, **SMALL).summary
    assert summary["exit_reason"] == "total_seconds"
    took = summary["processes"]
    assert {name: process["roles"] for name, process in took.items()} == {
        "learner": ["queue", "weights", "learner"], "actor": ["actor"], "evaluator": ["evaluator"],
    }  # fmt: skip
    for process in (took["learner"], took["actor"]):  # the other processes may not have started by then
        assert 0.0 < process["cpu_seconds"] < 10 * summary["wall_seconds"] and 10.0 < process["rss_mb"] < 4000.0
    assert sum(summary["lag_counts"].values()) > 0
    assert 0.0 < sum(summary["roles"]["actor"]["busy"].values()) <= 1.0


@pytest.mark.parametrize(
    ("name", "more"),
    [("impala", {}), ("a2c", {}), ("dqn", {}), ("es", {"optimizer": {"anneal": True}, "pairs": 4})],
    ids=["learner", "server", "replay", "evolution"],
)
def test_with_seconds_alone_there_are_any_number_of_steps_and_the_rate_falls_over_time(
    name: str, more: dict[str, Any], stage: Any
) -> None:
    settings = {"on": "simulation", "total_seconds": 0.6, "report_every": 0.1, "env": "CartPole-v1"}
    run = train(name, run_dir=stage.run, **settings, **SMALL, **more)
    assert run.summary["exit_reason"] == "total_seconds"
    rows = [json.loads(line) for line in (stage.run / "metrics.jsonl").read_text().splitlines()]
    rates = [row["train/learning_rate"] for row in rows if "train/learning_rate" in row]
    assert rates == sorted(rates, reverse=True) and rates[-1] < 0.4 * rates[0]


def test_a_preset_limits_steps_only_without_a_time_limit() -> None:
    assert parse_settings("impala", ["--env", "CartPole-v1"]).total_steps == 400_000
    for flags in (["--total-seconds", "5"], ["--total-seconds=5"], ["--total_seconds", "5"]):
        alone = parse_settings("impala", ["--env", "CartPole-v1", *flags])
        assert (alone.total_steps, alone.total_seconds) == (None, 5.0)
    both = parse_settings("pbt", ["--env", "CartPole-v1", "--total-seconds", "5", "--total-steps", "7"])
    assert (both.total_steps, both.total_seconds) == (7, 5.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pbt --total-seconds 5", "give --total-steps with --total-seconds"),
        ("impala --total-steps None", "give --total-steps, --total-seconds, or both"),
        ("impala --total-seconds soon", "total_seconds is 'soon'"),
    ],
)
def test_limits_that_cannot_be(words: str, said: str, capsys: Any) -> None:
    assert main(["train", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_no_time_is_refused(capsys: Any) -> None:
    assert main(["train", "impala", "--total-seconds", "0"]) == 2
    assert "--total-seconds is 0.0; give more than 0" in capsys.readouterr().err
