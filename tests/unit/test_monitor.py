"""The arithmetic of the monitor, checked by hand."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest

from thespis.core.context import Report, Stat, Traffic
from thespis.core.system.commit import to_json
from thespis.core.types import Episode
from thespis.runs.monitor import Monitor, RunIdentity
from thespis.runs.run_clock import Mark
from thespis.runs.terminal.view import EvaluationView, View

WHO = RunIdentity("impala", "CartPole-v1", 3, "local")


def stat(*values: float) -> Stat:
    result = Stat()
    for value in values:
        result.add(value)
    return result


def actor(index: int, seconds: float, steps: int, waited: float, *rewards: float) -> Report:
    return Report(
        "actor",
        index,
        seconds,
        counters={"env_steps": steps},
        episodes=[Episode(reward, 10) for reward in rewards],
        busy={"env_step": seconds / 2},
        edges={"actor.queue.insert": Traffic(2, 1000, waited, 600)},
        rss_mb=100.0 + index,
    )


def learner(updates: int, lags: tuple[float, ...] = (1.0,), loss: float = 0.5) -> Report:
    return Report(
        "learner",
        0,
        2.0,
        counters={"updates": updates, "replay/inserted": 10, "replay/sampled": 15},
        stats={"lag": stat(*lags), "train/loss": stat(loss), "queue/fill": stat(0.25, 0.75)},
        edges={"learner.queue.sample": Traffic(1, 500, 0.5), "learner.weights.publish": Traffic(1, 8, 0.25)},
        waiting="learner.queue.sample",
    )


def test_a_report_crosses_a_process_boundary() -> None:
    report = actor(1, 2.0, 30, 0.5, 4.0, 8.0)
    again = pickle.loads(pickle.dumps(report))
    assert again == report and again.episodes == [Episode(4.0, 10), Episode(8.0, 10)]


def test_a_row_covers_the_time_since_the_previous_one() -> None:
    monitor = Monitor(started=100.0)
    monitor.add(actor(0, 2.0, 30, 0.5, 4.0), 102.0)
    monitor.add(actor(1, 4.0, 50, 2.0, 8.0), 104.0)
    monitor.add(learner(3, (1.0, 2.0, 6.0)), 104.0)
    assert monitor.row(104.0) == {
        "rollout/ep_rew_mean": 6.0,
        "rollout/ep_len_mean": 10.0,
        "time/episodes": 2,
        "time/fps": 20.0,
        "lag/mean": 3.0,
        "lag/max": 6.0,
        "train/loss": 0.5,
        "queue/fill": 0.5,
        "replay/samples_per_insert": 1.5,
        "edge/actor.queue.insert/bytes_per_s": 500.0,
        "edge/learner.queue.sample/bytes_per_s": 125.0,
        "edge/learner.weights.publish/bytes_per_s": 2.0,
        "role/actor/wait_share": (0.25 + 0.5) / 2,
        "role/actor/rss_mb": 100.5,
        "role/learner/wait_share": 0.375,
        "role/learner/rss_mb": 0.0,
    }
    monitor.add(actor(0, 1.0, 10, 0.0), 105.0)
    row = monitor.row(106.0)
    assert row["time/fps"] == 5.0 and row["rollout/ep_rew_mean"] == 6.0 and row["role/actor/wait_share"] == 0.0
    assert "lag/mean" not in row and "train/loss" not in row


def test_an_empty_interval_makes_a_row_without_rates_of_nothing() -> None:
    monitor = Monitor(started=5.0)
    assert monitor.row(5.0) == {}
    assert monitor.row(6.0) == {"time/fps": 0.0}


def test_shares_name_the_costliest_edge_and_never_exceed_the_time() -> None:
    monitor = Monitor()
    monitor.add(learner(1), 1.0)
    share = monitor.shown.roles()["learner"]
    assert share.waits_on == "learner.queue.sample" and share.count == 1
    monitor.add(Report("prefetch", 0, 1.0, edges={"a": Traffic(1, 1, 0.9), "b": Traffic(1, 1, 0.9)}), 1.0)
    assert monitor.shown.roles()["prefetch"].wait == 1.0
    assert monitor.waiting["learner", 0] == "learner.queue.sample"


def test_the_mean_return_needs_a_hundred_episodes_and_forgets_older_ones() -> None:
    monitor = Monitor()
    monitor.add(actor(0, 1.0, 99, 0.0, *[1.0] * 99), 1.0)
    assert monitor.return_mean_100 is None and monitor.return_mean == 1.0
    summary = monitor.summary(WHO, "x", 1.0, None, None)
    assert (summary["return_mean_100"], summary["return_mean"], summary["return_episodes"]) == (None, 1.0, 99)
    monitor.add(actor(0, 1.0, 1, 0.0, 101.0), 2.0)
    assert monitor.return_mean_100 == 2.0
    monitor.add(actor(0, 1.0, 1, 0.0, *[3.0] * 100), 3.0)
    assert monitor.return_mean_100 == 3.0 and monitor.episodes == 200


def test_the_threshold_is_seen_inside_a_report_and_not_unseen() -> None:
    monitor = Monitor(threshold=10.0, started=50.0)
    monitor.add(actor(0, 1.0, 40, 0.0, *[10.0] * 99), 51.0)
    assert not monitor.reached
    monitor.add(actor(0, 1.0, 60, 0.0, 10.0, *[0.0] * 100), 53.0)
    assert monitor.reached and monitor.crossed == Mark(3.0, 100)
    monitor.add(actor(0, 1.0, 60, 0.0, *[10.0] * 100), 60.0)
    assert monitor.crossed == Mark(3.0, 100)


def test_the_return_that_ended_the_run_is_the_one_that_is_shown() -> None:
    """Episodes that finish during shutdown count, but the mean that ended the run does not change."""
    monitor = Monitor(threshold=10.0)
    monitor.add(actor(0, 1.0, 40, 0.0, *[10.0] * 100, *[0.0] * 50), 3.0)
    monitor.add(actor(0, 1.0, 40, 0.0, *[0.0] * 50), 4.0)
    summary = monitor.summary(WHO, "return_reached", 5.0, None, None)
    assert summary["return_mean_100"] == summary["return_mean"] == summary["stop_at_return"] == 10.0
    assert summary["episodes"] == 200 and summary["steps_to_threshold"] == 40
    assert monitor.row(5.0)["rollout/ep_rew_mean"] == 10.0


def test_speed_is_from_the_first_update_to_the_last() -> None:
    monitor = Monitor()
    monitor.add(actor(0, 1.0, 1000, 0.0), 10.0)
    monitor.add(learner(1), 10.0)
    assert monitor.steps_per_second is None
    monitor.add(actor(0, 1.0, 300, 0.0), 12.0)
    monitor.add(learner(1), 14.0)
    monitor.add(actor(0, 1.0, 5000, 0.0), 20.0)
    assert monitor.steps_per_second == 75.0
    summary = monitor.summary(WHO, "x", 20.0, None, None)
    assert summary["learning_seconds"] == 4.0
    assert summary["updates_per_second"] == 0.25, "one update in that time, which starts at the first update"


@pytest.mark.parametrize(("processes", "seconds"), [(True, 7.0), (False, 15.0)])
def test_the_start_up_of_a_resumed_run_is_no_time_of_learning(processes: bool, seconds: float) -> None:
    """Updates at 10 and 14 s; resumed at 15 s, the first step comes 8 s later, the first update 2 s after that."""
    monitor = Monitor()
    monitor.add(actor(0, 1.0, 100, 0.0), 10.0)
    monitor.add(learner(1), 10.0)
    monitor.add(actor(0, 1.0, 400, 0.0), 14.0)
    monitor.add(learner(1), 14.0)
    resumed = Monitor.restore(strict(json.dumps(monitor.state(15.0)).encode()), None, 0.0, processes=processes)
    assert resumed.learning_seconds == 4.0
    resumed.add(actor(0, 1.0, 50, 0.0), 8.0)
    assert resumed.learning_seconds == 4.0
    resumed.add(actor(0, 1.0, 250, 0.0), 10.0)
    resumed.add(learner(1), 10.0)
    assert resumed.learning_seconds == seconds and resumed.steps_per_second == 700 / seconds
    assert resumed.elapsed(10.0) == 25.0


@pytest.mark.parametrize(("processes", "spent"), [(True, 7.0), (False, 15.0)])
def test_the_start_up_of_a_resumed_run_takes_nothing_of_its_time(processes: bool, spent: float) -> None:
    """The first step is at 10 s; resumed at 15 s, the next step comes 8 s later, and 2 s pass until `spent`."""
    monitor = Monitor()
    assert monitor.time_spent(9.0) == 0.0
    monitor.add(actor(0, 1.0, 100, 0.0), 10.0)
    assert monitor.time_spent(14.0) == 4.0
    resumed = Monitor.restore(strict(json.dumps(monitor.state(15.0)).encode()), None, 0.0, processes=processes)
    assert resumed.time_spent(7.0) == (5.0 if processes else 12.0)
    resumed.add(actor(0, 1.0, 50, 0.0), 8.0)
    assert resumed.time_spent(10.0) == spent
    again = Monitor.restore(strict(json.dumps(resumed.state(10.0)).encode()), None, 0.0, processes=processes)
    assert again.time_spent(3.0) == spent + (0.0 if processes else 3.0)


def test_the_last_row_has_the_speed_until_the_last_step() -> None:
    """The time of the final evaluation does not count, because no role steps then."""
    monitor = Monitor()
    monitor.add(actor(0, 1.0, 10, 0.0), 1.0)
    monitor.row(1.0)
    monitor.add(actor(0, 1.0, 100, 0.0), 3.0)
    monitor.add(Report("evaluator", 0, 1.0), 9.0)
    assert monitor.row(11.0, last=True)["time/fps"] == 50.0
    assert "time/fps" not in monitor.row(12.0, last=True) and monitor.latest["time/fps"] == 50.0


def test_the_newest_evaluation_counts() -> None:
    monitor = Monitor()
    monitor.add(actor(0, 1.0, 300, 0.0), 0.5)
    for reward in (1.0, 9.0):
        report = Report("evaluator", 0, 1.0, counters={"eval/episodes": 5}, stats={"eval/mean_reward": stat(reward)})
        monitor.add(report, 1.0)
    assert monitor.row(1.0)["eval/mean_reward"] == 9.0
    summary = monitor.summary(WHO, "done", 2.0, None, None)
    assert summary["eval_return_mean"] == 9.0 and summary["eval_episodes"] == 5 and summary["eval_env_steps"] == 300
    monitor.add(actor(0, 1.0, 100, 0.0), 2.0)
    assert "eval/mean_reward" not in monitor.row(2.0)
    saved = Monitor.restore(strict(json.dumps(monitor.state(2.0)).encode()), None, 2.0)
    for each in (monitor, saved):
        assert View.of(each, WHO, None, 3.0).evaluation == EvaluationView(9.0, 5, 300), "shown until a newer evaluation"


KEYS = """
    architecture env seed on algorithm exit_reason env_steps updates episodes wall_seconds startup_seconds
    first_step_seconds
    steps_per_second updates_per_second learning_seconds return_mean_100 return_mean return_episodes eval_return_mean
    eval_episodes eval_env_steps stop_at_return seconds_to_threshold steps_to_threshold lag lag_counts
    samples_per_insert roles edges restarts dropped learner_events gradients weights nodes weights_sha256
"""


def strict(data: bytes) -> Any:
    return json.loads(data, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_the_summary_of_a_run_that_did_nothing_has_every_key_and_no_nan() -> None:
    summary = strict(to_json(Monitor().summary(WHO, "interrupted", 0.0, None, None)))
    assert list(summary) == KEYS.split()
    assert summary["lag"] == {"mean": None, "max": None} and summary["return_mean_100"] is None
    assert summary["edges"] == {} and summary["restarts"] == 0


def test_the_summary_adds_up() -> None:
    monitor = Monitor(threshold=1.0, started=10.0)
    monitor.add(actor(0, 1.0, 50, 0.0, *[1.0] * 100), 11.0)
    monitor.add(learner(2, (0.0, 4.0)), 12.0)
    monitor.row(12.0)
    monitor.add(actor(1, 1.0, 50, 0.0), 13.0)
    monitor.add(Report("actor", 1, counters={"dropped/partial_unroll": 2}), 13.0)
    monitor.restarted("actor", 1)
    monitor.restarted("learner", 0)
    summary = monitor.summary(WHO, "total steps", 20.0, 0.75, "ab")
    assert summary["env_steps"] == 100 and summary["updates"] == 2 and summary["wall_seconds"] == 10.0
    assert summary["lag"] == {"mean": 2.0, "max": 4.0} and summary["seconds_to_threshold"] == 1.0
    assert summary["edges"]["actor.queue.insert"] == {"calls": 4, "bytes": 2000, "sent": 1200}
    assert summary["restarts"] == 2 and summary["dropped"] == {"partial_unroll": 2}
    assert summary["samples_per_insert"] == 1.5 and summary["startup_seconds"] == 0.75


def test_roles_are_added_up_from_the_first_update_on() -> None:
    monitor = Monitor()
    monitor.add(actor(0, 9.0, 1, 9.0), 1.0)
    monitor.add(learner(1), 2.0)
    monitor.add(actor(0, 1.0, 1, 0.25), 3.0)
    monitor.add(actor(1, 3.0, 1, 0.75), 3.0)
    roles = monitor.summary(WHO, "x", 4.0, None, None)["roles"]
    assert roles == {
        "actor": {"count": 2, "busy": {"env_step": 0.5}, "wait_share": 0.25, "waits": {"actor.queue.insert": 0.25}}
    }


def test_the_lags_of_a_run_come_in_order() -> None:
    monitor = Monitor()
    monitor.add(Report("learner", 0, lags={12: 3, 2: 1}), 1.0)
    monitor.add(Report("learner", 0, lags={2: 4}), 2.0)
    assert list(monitor.lag_counts.items()) == [("2", 5), ("12", 3)]


def busy_monitor() -> Monitor:
    monitor = Monitor(threshold=0.3)
    rng = np.random.default_rng(0)
    for k in range(1, 8):
        now = k / 3.0
        # Float32 rewards must fit in JSON, too.
        monitor.add(actor(0, 0.1, 7, 0.1 / 3.0, *rng.random(20).astype(np.float32)), now)
        monitor.add(learner(1, (0.1 * k,)), now)
        monitor.row(now)
    monitor.restarted("actor", 0)
    return monitor


def test_a_restored_monitor_goes_on_to_the_bit() -> None:
    whole = busy_monitor()
    now = 7 / 3.0
    saved = strict(json.dumps(whole.state(now)).encode())
    resumed = Monitor.restore(saved, threshold=0.3, started=now)
    assert resumed.state(now) == whole.state(now) == saved
    for monitor in (whole, resumed):
        monitor.add(actor(0, 0.1, 7, 0.01, 0.7, 0.1), now + 0.1)
        monitor.add(learner(1), now + 0.2)
    # Both intervals start at the row of the checkpoint.
    assert resumed.row(now + 0.3) == whole.row(now + 0.3)
    assert resumed.summary(WHO, "x", now + 1.0, None, None) == whole.summary(WHO, "x", now + 1.0, None, None)


def test_run_time_goes_on_after_a_pause_of_the_real_clock() -> None:
    saved = busy_monitor().state(10.0)
    resumed = Monitor.restore(saved, threshold=None, started=5000.0)
    assert resumed.elapsed(5002.0) == 12.0
    resumed.add(actor(0, 1.0, 40, 0.0), 5002.0)
    assert resumed.row(5002.0)["time/fps"] == 20.0


def test_another_threshold_forgets_the_crossing() -> None:
    saved = busy_monitor().state(10.0)
    assert saved["crossed"] is not None
    assert Monitor.restore(saved, threshold=0.9, started=0.0).crossed is None
    assert Monitor.restore(saved, threshold=0.3, started=0.0).crossed is not None


def test_a_loss_that_is_nan_is_shown_and_written_as_null() -> None:
    monitor = Monitor()
    monitor.add(learner(1, loss=float("nan")), 1.0)
    row = monitor.row(1.0)
    assert math.isnan(row["train/loss"])
    assert strict(to_json(row))["train/loss"] is None
