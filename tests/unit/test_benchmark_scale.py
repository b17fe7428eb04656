"""The cost model that the scaling benchmark measures, and its predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.prediction import Times, calibrate, cost_model, ends, fit, predict, time_work
from benchmarks.scale import page
from benchmarks.waiting import SETTINGS
from thespis.runtime.cost_model import CostModel


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small caches, because overwriting large ones takes time and does not matter here."""
    monkeypatch.setattr("benchmarks.prediction.CACHE_BYTES", 1 << 16)


def test_a_line_through_the_medians() -> None:
    found = [(items, 0.5 + 0.01 * items) for items in (10, 10, 10, 50, 50, 50)]
    assert fit(found) == pytest.approx({"base": 0.5, "per_item": 0.01})
    assert fit([*found, (10, 99.0)])["base"] == pytest.approx(0.5, abs=1e-6), "one disturbance changes no median"
    assert fit([(4, 2.0), (4, 3.0), (4, 9.0)]) == {"base": 3.0}


@pytest.mark.parametrize("name", SETTINGS)
def test_all_work_of_an_architecture_is_timed(name: str) -> None:
    times: Times = {kind: [] for kind in ("env_step", "inference", "learn", "apply", "insert", "sample")}
    time_work(name, 2, SETTINGS[name](2), times)
    for kind in ("env_step", "inference", "learn"):
        assert times[kind] and all(seconds > 0 for _, seconds in times[kind])


@pytest.mark.timeout(120)
def test_predicted_steps_follow_from_the_costs() -> None:
    costs = {
        "work": {"env_step": {"base": 0.009}, "inference": {"base": 0.001}, "learn": {"base": 0.001}},
        "edges": {"default": {"latency": 0.0}},
    }
    for actors in (2, 8):
        found = predict("impala", actors, costs, [100 * actors, 1_500 * actors])
        assert found["steps_per_second"] == pytest.approx(100 * actors, rel=0.02)
        # A step of every actor takes 10 ms; the learner makes two updates in the 200 ms of an unroll.
        learns = 0.001 * 2 / (20 * actors)
        assert found["core_seconds"] == pytest.approx({"stepping": 0.01, "serving": learns}, rel=0.02)


def test_the_cost_model_can_be_read_by_the_simulation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.prediction.sleep_seconds", lambda: [0.01, 0.011])
    path = tmp_path / "costs.yaml"
    path.write_text(yaml.safe_dump(cost_model("impala", latency=1e-4)))
    model, rng = CostModel.load(path), np.random.default_rng(0)
    assert 0.01 <= model.wait_seconds("env_step", rng) <= 0.011 and 0 < model.work_seconds("env_step", 1, rng) < 0.01
    assert model.work_seconds("learn", 640, rng) > model.work_seconds("learn", 20, rng) > 0


@pytest.mark.timeout(120)
def test_a_step_takes_of_a_core_what_it_took_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.prediction.available_cores", lambda: 2)
    costs: dict[str, Any] = {
        "work": {"env_step": {"base": 1e-4, "wait": 0.01}, "inference": {"base": 1e-4}, "learn": {"base": 0.0}},
        "edges": {"default": {"latency": 0.0}},
    }
    run = {
        "cores_busy": {"actor": 0.8, "queue": 0.016},
        "calls_per_second": {"actor.queue.insert": 80.0, "actor.weights.pull": 80.0},
        "steps_per_second": 1600.0,
        "steps": [6_400, 12_800],
    }
    calibrate("impala", costs, run)
    # Four messages per 20 steps. A message costs the same at both ends.
    assert costs["edges"]["default"]["cpu"] == pytest.approx(0.016 / 1600 * 20 / 4, rel=0.05)
    assert costs["work"]["env_step"]["base"] == pytest.approx(4e-4 - 1e-5, rel=0.05)
    assert costs["cores"] == 2
    few, many = (predict("impala", actors, costs, [50 * actors, 200 * actors]) for actors in (16, 64))
    assert few["steps_per_second"] == pytest.approx(1500, rel=0.05)
    assert many["steps_per_second"] == pytest.approx(2 / 5e-4, rel=0.08), "two cores, half a millisecond per step"


def test_a_message_has_two_ends() -> None:
    calls = {"actor.replay.insert": 100.0, "learner.replay.sample": 10.0}
    found = ends(calls, 1000.0)
    assert found == pytest.approx((0.2, 0.2 + 0.04)), (
        "request and response; both ends of the learner's calls are in serving processes"
    )


@pytest.mark.timeout(120)
def test_the_lag_of_a_replay_is_looked_at_when_it_is_as_full() -> None:
    costs = {
        "work": {"env_step": {"base": 0.009}, "inference": {"base": 0.001}, "learn": {"base": 0.001}},
        "edges": {"default": {"latency": 0.0}},
    }
    early, late = (predict("apex", 2, costs, steps)["lag"] for steps in ([500, 1_500], [2_500, 3_500]))
    assert late > 2 * early, "in a replay that is still filling, steps get older"


def test_the_page_says_how_far_off_the_prediction_is() -> None:
    busy = {"actor": 1.3, "queue": 0.2}
    run = {"steps_per_second": 5000.0, "lag": 2.0, "cores_busy": busy, "mb_per_process": {"actor": 240.0}}
    results = {
        "machine": "a machine",
        "local": {"impala": {"64": run}},
        "simulation": {"impala": {"64": {"steps_per_second": 6000.0, "lag": 2.2}}},
    }
    row = page(results).splitlines()[-1]
    assert row.startswith("| 64 | 6,400 | 5,000 | 0.78 | 6,000 | +20% | 2.0 | 2.2 | 1.5 of ")
