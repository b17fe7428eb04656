"""Callbacks: which events they receive and when, how they end a run, and that a broken one harms nothing else."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage

import thespis
from thespis.cli.train import parse_settings
from thespis.core.errors import ThespisError
from thespis.runs import callbacks as module
from thespis.runs.callbacks import Callbacks
from thespis.training.callbacks import Callback, Reporter, find_callback
from thespis.training.trained_run import TrainedRun


class Recorder(Callback):
    """Records its events; returns "stop" at the given row."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.stop_at = stop_at

    def on_start(self, run: TrainedRun) -> None:
        self.calls.append(("start", (run.path, run.config.seed)))

    def on_report(self, row: dict[str, Any]) -> Any:
        self.calls.append(("report", row))
        return "stop" if self.stop_at == len(self.rows) else None

    def on_checkpoint(self, path: Path) -> None:
        assert (path / "meta.json").is_file()
        self.calls.append(("checkpoint", path.name))

    def on_end(self, summary: dict[str, Any]) -> None:
        self.calls.append(("end", summary))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [result for kind, result in self.calls if kind == "report"]


class Broken:
    """Raises in one method, and counts its calls."""

    def __init__(self, method: str) -> None:
        self.method, self.called = method, 0

    def on_start(self, run: TrainedRun) -> None:
        self._maybe("on_start")

    def on_report(self, row: dict[str, Any]) -> None:
        self._maybe("on_report")

    def _maybe(self, method: str) -> None:
        if method == self.method:
            self.called += 1
            raise OSError("the logger's disk is full")


def small(path: Path, *callbacks: Any, **more: Any) -> TrainedRun:
    fixed = {"env": "CartPole-v1", "on": "simulation", "actors": 1, "envs_per_actor": 2, "eval_episodes": 0}
    size = {"total_steps": 1_500, "report_every": 0.02, "network": {"hidden": (4,)}, "seed": 3}
    return thespis.train("impala", callbacks=callbacks, run_dir=path, quiet=True, **{**fixed, **size, **more})


def test_a_simulated_run_tells_all_in_order(tmp_path: Path) -> None:
    result = Recorder()
    run = small(tmp_path / "run", result)
    kinds = [kind for kind, _ in result.calls]
    assert kinds[0] == "start" and kinds[-1] == "end" and kinds.count("end") == 1 and "checkpoint" in kinds
    assert result.calls[0][1] == (tmp_path / "run", 3)
    assert result.calls[-1][1] == run.summary
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert json.loads(json.dumps(result.rows)) == lines and len(lines) > 2


def test_callbacks_leave_a_simulated_run_as_it_is(tmp_path: Path) -> None:
    result, again = Recorder(), Recorder()
    with_one = small(tmp_path / "a", result).summary
    assert small(tmp_path / "b", again).summary["weights_sha256"] == with_one["weights_sha256"]
    assert [row["time"] for row in result.rows] == [row["time"] for row in again.rows]
    assert small(tmp_path / "c").summary["weights_sha256"] == with_one["weights_sha256"]


def test_a_report_may_stop_the_run(tmp_path: Path) -> None:
    result = Recorder(stop_at=2)
    run = small(tmp_path / "run", result, total_steps=1_000_000, eval_episodes=2)
    assert run.summary["exit_reason"] == "callback"
    assert run.summary["env_steps"] < 10_000
    assert run.summary["eval_episodes"] == 2, "the run ends as usual, with an evaluation"
    assert ("checkpoint" in dict(result.calls)) and run.policy.checkpoint.is_dir()
    assert result.calls[-1][0] == "end"
    again = small(tmp_path / "again", Recorder(stop_at=2), total_steps=1_000_000, eval_episodes=2)
    assert again.summary["weights_sha256"] == run.summary["weights_sha256"], "in the simulation, at the same step"


def test_an_error_at_the_start_refuses_the_run(tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="callback Broken: on_start raised OSError: the logger's disk is full"):
        small(tmp_path / "run", Broken("on_start"))
    assert not (tmp_path / "run").exists()


def test_an_error_later_costs_only_the_callback(tmp_path: Path) -> None:
    broken, result = Broken("on_report"), Recorder()
    run = small(tmp_path / "run", broken, result)
    assert run.summary["exit_reason"] == "total_steps" and broken.called == 1
    assert len(result.rows) > 2 and result.calls[-1][0] == "end"
    log = (run.path / "log.txt").read_text()
    assert log.count("on_report raised OSError: the logger's disk is full; it is not called again") == 1
    assert "Traceback" in log and "self._maybe" in log


def test_another_answer_than_stop_is_said_once(tmp_path: Path) -> None:
    run = small(tmp_path / "run", lambda row: True)
    assert run.summary["exit_reason"] == "total_steps"
    assert (run.path / "log.txt").read_text().count("returned True; return 'stop' to end the run, or nothing") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("wand", "unknown callback 'wand'; give file.py::name or one of wandb, mlflow"),
        ("nowhere.py::Log", "cannot be loaded"),
        ("json::JSONDecodeError", "cannot be created: TypeError"),
        (3, "callback int is not a function and has none of on_start"),
    ],
)
def test_what_is_no_callback_is_refused_before_the_run(tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(ThespisError, match=said):
        small(tmp_path / "run", given)
    assert not (tmp_path / "run").exists()


def test_classes_functions_and_names_are_callbacks() -> None:
    assert isinstance(find_callback(Recorder)[1], Recorder)
    rows: list[Any] = []
    _, made = find_callback(rows.append)
    made.on_report({"step": 1})
    assert rows == [{"step": 1}]
    assert find_callback("thespis.training.callbacks::Callback")[0] == "thespis.training.callbacks::Callback"


def test_the_flag_may_be_repeated_and_is_kept_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("def log(row): pass\n")
    monkeypatch.chdir(tmp_path)
    cfg = parse_settings(
        "impala", ["--callback", "mine.py::log", "--seed", "1", "--callback=wandb", "--save_every", "5"]
    )
    assert cfg.callback == ("mine.py::log", "wandb") and cfg.save_every == 5
    run = small(tmp_path / "run", "mine.py::log")
    assert TrainedRun(run.path).config.callback == (f"{tmp_path / 'mine.py'}::log",)


def test_a_checkpoint_is_saved_every_so_many_steps(tmp_path: Path) -> None:
    result = Recorder()
    run = small(tmp_path / "run", result, save_every=2_000, total_steps=8_000, keep=20)
    steps = [json.loads((path / "meta.json").read_text())["env_steps"] for path in run.path.glob("checkpoints/*-*/")]
    # At each multiple, when the driver detects it, and at the end.
    assert sorted({step // 2_000 for step in steps}) == [1, 2, 3, 4]
    assert len(steps) == [kind for kind, _ in result.calls].count("checkpoint")


def test_a_simulated_run_saves_as_soon_as_the_steps_are_taken(tmp_path: Path) -> None:
    """Shorten the interval between reports, because this whole run takes less than the default interval."""
    run = small(tmp_path / "run", save_every=500, total_steps=2_500, keep=20, on="simulation")
    steps = sorted(
        json.loads((path / "meta.json").read_text())["env_steps"] for path in run.path.glob("checkpoints/*-*/")
    )
    assert len(steps) >= 3 and steps[0] < 1_000, steps


def test_saving_more_often_than_a_batch_is_collected_does_not_prevent_updates(tmp_path: Path) -> None:
    run = small(tmp_path / "run", save_every=1, total_steps=1_000, keep=20, on="simulation")
    assert run.summary["updates"] >= 3


class Slow:
    """Blocks in every report until released."""

    def __init__(self) -> None:
        self.go, self.entered, self.steps = threading.Event(), threading.Event(), list[int]()
        self.ended = False

    def on_report(self, row: dict[str, Any]) -> None:
        self.entered.set()
        self.go.wait(20.0)
        self.steps.append(row["step"])

    def on_end(self, summary: dict[str, Any]) -> None:
        self.ended = True


def test_a_slow_callback_delays_nothing_and_misses_nothing_in_order() -> None:
    slow, lines = Slow(), list[str]()
    made = Callbacks([("slow", slow)], lambda line, show=True: lines.append(line), synchronous=False)
    made.start(None)
    made.report({"step": 0})
    assert slow.entered.wait(20.0)
    for step in range(1, module._MOST_WAITING + 5):
        made.report({"step": step})  # returns at once
    assert lines == [f"callback slow is {module._MOST_WAITING} calls behind; it skips rows until it catches up"]
    slow.go.set()
    made.end({"exit_reason": "total_steps"})
    made.close()
    assert slow.steps == list(range(module._MOST_WAITING + 1)) and slow.ended


def test_a_hanging_callback_is_left_behind_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORT_END_SECONDS", 0.01)
    slow, lines = Slow(), list[str]()
    made = Callbacks([("slow", slow)], lambda line, show=True: lines.append(line), synchronous=False)
    made.report({"step": 0})
    made.end({"exit_reason": "interrupted"})
    assert lines == ["callback slow has not finished after 0.01 s and was abandoned"]
    slow.go.set()
    made.close()
    assert not slow.ended, "no callback is called after the run is closed"


def cancelled(_: Any) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("synchronous", [True, False])
def test_no_error_whatever_ends_the_thread(synchronous: bool) -> None:
    result, lines = Recorder(), list[str]()

    def log(line: str, show: bool = True) -> None:
        lines.append(line)

    made = Callbacks([("odd", Reporter(cancelled)), ("events", result)], log, synchronous=synchronous)
    made.report({"step": 0})
    made.end({"exit_reason": "total_steps"})
    made.close()
    assert [kind for kind, _ in result.calls] == ["report", "end"]
    assert lines[0].startswith("callback odd: on_report raised CancelledError") and len(lines) == 2


LOCAL = """
import json
from pathlib import Path

class Log:
    def __init__(self):
        self.events = []
    def on_start(self, run):
        self.events.append(run.config.seed)
    def on_report(self, row):
        self.events.append(row["step"])
        return "stop" if "rollout/ep_rew_mean" in row else None
    def on_checkpoint(self, path):
        self.events.append(path.name)
    def on_end(self, summary):
        self.events.append(summary["exit_reason"])
        Path("events.json").write_text(json.dumps(self.events))
"""


def test_local_runs_call_callbacks_which_can_stop_them(stage: Stage) -> None:
    (stage.path / "log.py").write_text(LOCAL)
    done = stage.train("--callback", "log.py::Log", "--report-every", 0.1)
    assert done.returncode == 0, done.stderr
    result = json.loads((stage.path / "events.json").read_text())
    assert result[-1] == "callback" == json.loads((stage.run / "summary.json").read_text())["exit_reason"]
    assert result[0] == 0 and any(isinstance(each, str) for each in result[:-1]), "on_checkpoint was called"
