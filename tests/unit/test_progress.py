"""The panel and the lines show the values of the view, at any width."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from thespis.core.context import Report
from thespis.core.types import Episode
from thespis.runs.interval import RoleShare
from thespis.runs.monitor import Monitor, RunIdentity
from thespis.runs.terminal.formatting import bar, format_duration, format_number, sparkline
from thespis.runs.terminal.panel import Lines, Panel, line, render, render_svg
from thespis.runs.terminal.summary_text import final_lines
from thespis.runs.terminal.view import EvaluationView, RealTime, View

WHO = RunIdentity("impala", "CartPole-v1", 3, "local")


def a_view(**changes: object) -> View:
    values: dict[str, object] = {
        "identity": WHO,
        "elapsed": 187.0,
        "env_steps": 123_456,
        "total_steps": 500_000,
        "updates": 1_542,
        "episodes": 801,
        "return_mean": 211.5,
        "threshold": 475.0,
        "samples_per_insert": 1.02,
        "metrics": {
            "time/fps": 1882.7,
            "lag/mean": 1.37,
            "lag/max": 6.0,
            "queue/fill": 0.62,
        },
        "evaluation": EvaluationView(312.0, 10, 98_765),
        "return_episodes": 100,
        "history": tuple(float(x) for x in range(150)),
        "roles": {
            "actor": RoleShare(8, {"env_step": 0.35, "forward": 0.3}, 0.25, "actor.queue.insert"),
            "queue": RoleShare(1, {"copy": 0.05}, 0.0, None),
            "learner": RoleShare(1, {"update": 0.8, "publish": 0.05}, 0.12, "learner.queue.sample"),
            "weights": RoleShare(1, {}, 0.0, None),
            "evaluator": RoleShare(1, {"episode": 0.2}, 0.75, "evaluator.weights.pull"),
        },
        "restarts": {"actor": 4},
        "dropped": {"partial_unroll": 17},
    }
    return View(**{**values, **changes})  # type: ignore[arg-type]


def test_the_time_left_is_what_ends_first() -> None:
    steps = {"total_steps": 100_000, "env_steps": 90_000, "metrics": {"time/fps": 1000.0}}
    time = {"total_seconds": 10.0, "time_spent": 6.0}
    by_steps, by_both, by_time = a_view(**steps), a_view(**steps, **time), a_view(total_steps=None, **time)
    assert (by_steps.seconds_left, by_both.seconds_left, by_time.seconds_left) == (10.0, 4.0, 4.0)
    assert (by_steps.done, by_both.done, by_time.done) == (0.9, 0.9, 0.6)
    assert a_view(total_steps=None).done is None and a_view(total_steps=None).seconds_left is None


def test_a_run_that_only_has_seconds_has_a_bar_too() -> None:
    text = "\n".join(drawn(a_view(total_steps=None, total_seconds=100.0, time_spent=25.0), 80))
    assert "1m 15s left" in text and "123,456 steps" in text and "━" in text


def drawn(view: View, columns: int) -> list[str]:
    console = Console(width=columns, file=io.StringIO(), record=True)
    console.print(render(view, columns))
    return console.export_text().splitlines()


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_the_panel_shows_every_value_and_fits(columns: int) -> None:
    rows = drawn(a_view(), columns)
    text = "\n".join(rows)
    assert len(rows) <= 24 and max(map(len, rows)) <= min(columns, 100)
    for shown in (
        "impala", "CartPole-v1", "local", "3m 07s", "3m 20s left", "123,456", "500k", "1,542", "211.5", "goal 475",
        "1882.7", "1.37", "max 6", "62%", "1.02", "training return", "greedy return", "312",
        "evaluation of 10 episodes at 98,765 steps", "801 episodes", "env_step 35%", "queue.insert", "queue.sample",
        "weights.pull", "75%", "actor 4", "partial_unroll 17", "▁", "█",
    ):  # fmt: skip
        assert shown in text, shown


@pytest.mark.parametrize("columns", [20, 80, 100])
def test_a_run_that_has_not_reported_yet_can_be_drawn(columns: int) -> None:
    view = View.of(Monitor(), WHO, None, 0.0)
    assert "impala" in "\n".join(drawn(view, columns))
    assert "steps 0" in line(view) and "nan" not in line(view)


def test_odd_values_are_drawn() -> None:
    roles = {"parameter_server": RoleShare(1000, {f"kind{i}": 0.3 for i in range(9)}, 1.0, "parameter_server.a.b")}
    odd = {"queue/fill": float("nan"), "lag/mean": float("nan"), "lag/max": float("-inf"), "time/fps": 0.0}
    text = "\n".join(drawn(a_view(return_mean=float("nan"), history=(float("nan"),), roles=roles, metrics=odd), 80))
    assert "parameter_server" in text and "1000" in text


def test_lines_prints_one_line_a_report() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines.update(a_view())
    lines.update(a_view(env_steps=200_000))
    first, second = stream.getvalue().splitlines()
    for shown in (
        "[3m 07s]", "123,456/500,000", "1882.7/s", "training return 211.5", "greedy return 312 at 98,765",
        "lag 1.37 max 6", "queue 62%", "restarts 4",
    ):  # fmt: skip
        assert shown in first, shown
    assert "200,000" in second


def test_virtual_time_is_called_so_and_real_time_stands_beside_it() -> None:
    """A virtual second takes 0.2 real seconds here, so 200 virtual seconds are left for 40 real ones."""
    view = a_view(env_steps=300_000, metrics={"time/fps": 1000.0}, real=RealTime(37.0, 0.2))
    for text in (line(view), "\n".join(drawn(view, 100))):
        assert "3m 07s virtual, 37s real" in text and "virtual s" in text
    assert "left 40s real" in line(view) and "40s real left" in "\n".join(drawn(view, 100))
    assert a_view(real=RealTime(0.0, None)).seconds_left is None


def test_the_goal_is_reached_by_a_hundred_episodes_and_not_by_fewer() -> None:
    monitor = Monitor(threshold=1.0)
    monitor.add(Report("actor", 0, 1.0, counters={"env_steps": 5}, episodes=[Episode(2.0, 1)] * 99), 1.0)
    few = View.of(monitor, WHO, None, 1.0)
    assert not few.reached and "mean of 99" in "\n".join(drawn(few, 100))
    monitor.add(Report("actor", 0, 1.0, counters={"env_steps": 5}, episodes=[Episode(2.0, 1)]), 2.0)
    enough = View.of(monitor, WHO, None, 2.0)
    assert enough.reached and "mean of" not in "\n".join(drawn(enough, 100))


def test_the_live_panel_draws_on_update_and_leaves_no_thread() -> None:
    import threading

    console = Console(width=100, file=io.StringIO(), force_terminal=True)
    before = threading.active_count()
    with Panel(console) as panel:
        panel.update(a_view())
        assert threading.active_count() == before
        assert "211.5" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_picture_is_an_svg_with_the_values() -> None:
    picture = render_svg(a_view())
    assert picture.startswith("<svg") and "211.5" in picture
    assert "url(http" not in picture.replace('"', ""), "a viewer without a network would show no text"


def test_the_final_lines_say_how_it_ended_and_where_it_is() -> None:
    monitor = Monitor()
    text = "\n".join(final_lines(monitor.summary(WHO, "interrupted", 61.0, None, None), Path("runs/x-1")))
    assert "interrupted" in text and "1m 01s" in text and "runs/x-1" in text and "None" not in text


def ended(**changes: object) -> str:
    """Return the final lines of a run with these figures."""
    figures = {
        "exit_reason": "total_steps", "env_steps": 215_182, "wall_seconds": 5.1, "steps_per_second": 159_000.0,
        "learning_seconds": 1.35, "return_mean": 180.0, "return_episodes": 100, "eval_return_mean": 200.0,
        "eval_episodes": 10, "eval_env_steps": 215_182, "exploration": "actions are drawn", "real_seconds": 5.1,
        "resumed_at_steps": None,
    }  # fmt: skip
    summary = {**Monitor().summary(WHO, "x", 0.0, None, None), **figures, **changes}
    return "\n".join(final_lines(summary, Path("runs/x-1")))


def test_speed_stands_beside_the_time_that_it_was_taken_over() -> None:
    assert "in 5.1s; 159k steps/s in the 1.4s from the first update to the last" in ended()
    assert "steps/s" not in ended(steps_per_second=None, learning_seconds=None)


def test_final_returns_say_what_they_are_and_of_how_many_episodes() -> None:
    assert (
        "training return 180 (mean of the last 100 episodes); greedy return 200 (evaluation of 10 episodes)" in ended()
    )
    assert "training return 12.50 (mean of the last 37 episodes)" in ended(return_mean=12.5, return_episodes=37)
    assert "training return 12.50 (of one episode)" in ended(return_mean=12.5, return_episodes=1)
    assert "no episode has ended" in ended(return_mean=None, return_episodes=0)
    assert "(evaluation of 10 episodes at 90,000 steps)" in ended(eval_env_steps=90_000)


def test_returns_far_apart_are_explained() -> None:
    assert "explores" not in ended() and "explores" not in ended(eval_return_mean=None)
    assert "training explores (actions are drawn)" in ended(return_mean=20.0)
    assert "explores" in ended(return_mean=-900.0, eval_return_mean=-150.0)


def test_the_final_lines_of_a_simulation_say_which_time_is_virtual() -> None:
    text = ended(on="simulation", real_seconds=42.0)
    assert "in 5.1s virtual (42s real); 159k steps/virtual s in the 1.4s virtual" in text
    assert "(42s real since it was resumed)" in ended(on="simulation", real_seconds=42.0, resumed_at_steps=7)


def test_the_algorithm_stands_beside_the_architecture_unless_they_share_a_name() -> None:
    assert "impala on CartPole-v1: " in ended()
    assert "impala with appo on CartPole-v1: " in ended(algorithm="appo")
    assert "dqn on CartPole-v1: " in ended(architecture="dqn", algorithm="dqn")
    assert "impala with Mine on CartPole-v1: " in ended(algorithm="/somewhere/mine.py::Mine")
    view = a_view(identity=replace(WHO, architecture="apex", algorithm="r2d2"))
    assert "apex with r2d2  CartPole-v1" in drawn(view, 100)[0]


def test_the_exit_reason_comes_with_what_decided_it() -> None:
    text = ended(
        exit_reason="return_reached", stop_at_return=475.0, seconds_to_threshold=4.5, steps_to_threshold=210_000
    )
    assert "return_reached, return 475 after 210,000 steps and 4.5s" in text


def test_short_forms() -> None:
    cases = [None, float("nan"), 0.0, 0.03125, 7.25, 195.44, 9999.0, 12345.0, 4.5e6, 2e9, -0.5]
    assert [format_number(value) for value in cases] == [
        "–", "–", "0", "0.031", "7.25", "195.4", "9999", "12.3k", "4.5M", "2G", "-0.500",
    ]  # fmt: skip
    assert [format_duration(s) for s in (0, 42, 187, 7500, 356400)] == ["0s", "42s", "3m 07s", "2h 05m", "4d 03h"]
    assert [format_duration(s) for s in (0.04, 1.35, 9.94, 9.97)] == ["0.0s", "1.4s", "9.9s", "9.9s"]
    assert [bar(share, 4) for share in (0.0, 0.5, 1.0, 7.0)] == ["    ", "██  ", "████", "████"]
    assert len(bar(0.33, 4)) == 4
    assert sparkline([0.0, 1.0], 10) == "▁█" and sparkline([], 5) == "" and sparkline([2.0, 2.0], 5) == "▁▁"
    assert len(sparkline([float(x) for x in range(1000)], 30)) == 30


def test_the_panel_shows_the_node_of_each_role() -> None:
    nodes = {"learner 0": "10.0.0.1", "queue 0": "10.0.0.1", "actor 0": "10.0.0.2"}
    console = Console(file=io.StringIO(), width=100)
    console.print(render(a_view(nodes=nodes), 100))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    first, second = (line for line in out.splitlines() if "10.0.0." in line)
    assert "learner 0  queue 0" in first and "actor 0" in second
