"""Signals while a run has no event loop or only waits: at its start, at its end, and in evaluations."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, until

from thespis import train
from thespis.runtime.signals import handled, kept_handlers

pytestmark = pytest.mark.timeout(120)
NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
LINGERING = Path(__file__).parent / "lingering.py"


def linger(stage: Stage, monkeypatch: pytest.MonkeyPatch, at: str, on: str) -> subprocess.Popen[str]:
    """A run that waits at its start or its end."""
    monkeypatch.setenv("LINGER", at)
    monkeypatch.setenv("GATE", str(stage.path))
    process = stage.start("train", LINGERING, *stage.small(), "--total-steps", 200, "--on", on)
    until(lambda: process.poll() is not None or (stage.path / "waits").exists())
    assert process.poll() is None, process.communicate()
    return process


def handles(process: subprocess.Popen[str], number: int) -> bool:
    """Whether the process has received the signal, so that it is no longer pending."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(mask >> (number - 1) & 1 for mask in pending)


@pytest.mark.parametrize("on", ["local", "simulation"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_run_that_has_ended_finishes(number: int, on: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has its result. A late signal must not turn it into a failure."""
    process = linger(stage, monkeypatch, "end", on)
    process.send_signal(number)
    until(lambda: process.poll() is not None or handles(process, number))
    (stage.path / "go").touch()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "concluded" in out + err
    assert json.loads((stage.run / "summary.json").read_text())["exit_reason"] == "total_steps"


def test_a_second_signal_ends_what_hangs_after_the_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    process = linger(stage, monkeypatch, "end", "simulation")
    process.send_signal(signal.SIGTERM)
    until(lambda: process.poll() is not None or handles(process, signal.SIGTERM))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert (stage.run / "summary.json").exists()


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_does_not_replace_the_exit_code(number: int, stage: Stage) -> None:
    """The hook is registered before the hooks of the run, so it runs after them."""
    code = (
        f"import atexit, os, sys; atexit.register(os.kill, os.getpid(), {number})\n"
        "from thespis.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["train", "impala", *stage.small(), "--total-steps", "200", "--on", "simulation"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], env=stage.environment(), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("number", NUMBERS)
def test_a_start_that_is_cut_short_leaves_nothing(number: int, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    process = linger(stage, monkeypatch, "start", "local")
    assert stage.run.exists()
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert not stage.run.exists()


def test_a_signal_leaves_a_callback_behind(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as Ctrl-C: the run itself has succeeded."""
    (stage.path / "hanging.py").write_text(
        "import pathlib, time\n\nclass Hangs:\n    def on_end(self, summary):\n"
        "        pathlib.Path('waits').touch()\n        time.sleep(1000)\n"
    )
    process = stage.start(
        "train", "impala", *stage.small(), "--total-steps", 200, "--callback", "hanging.py::Hangs"
    )  # fmt: skip
    until(lambda: process.poll() is not None or (stage.path / "waits").exists())
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "was abandoned" in err


def test_a_signal_cuts_the_final_evaluation_short(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESETS", str(stage.path / "resets"))
    flags = ["--env", "factories::endless", "--eval-episodes", 2, "--eval-every", 0, "--eval-max-steps", 10**9]
    process = stage.start("train", "impala", *stage.small(), *flags, "--total-steps", 500)

    def evaluates() -> bool:
        if not (stage.path / "resets").exists() or not (stage.run / "topology.json").exists():
            return False
        pids = json.loads((stage.run / "topology.json").read_text())["pids"]
        return str(pids.get("evaluator-0")) in (stage.path / "resets").read_text().split()

    until(lambda: process.poll() is not None or evaluates())
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    summary = json.loads((stage.run / "summary.json").read_text())
    assert (summary["exit_reason"], summary["eval_episodes"]) == ("total_steps", 0)


@pytest.mark.parametrize("on", ["local", "simulation"])
def test_the_callers_handlers_come_back(on: Any, stage: Stage) -> None:
    def mine(number: int, frame: Any) -> None: ...

    with kept_handlers() as numbers:
        for number in numbers:
            signal.signal(number, mine)
        train("impala", on=on, actors=1, envs_per_actor=2, total_steps=200, eval_episodes=0, run_dir=stage.run,
              quiet=True)  # fmt: skip
        assert [signal.getsignal(number) for number in numbers] == [mine] * len(numbers)


def test_handlers_nest() -> None:
    seen: list[tuple[str, int]] = []
    with handled(lambda number: seen.append(("outer", number))):
        with handled(lambda number: seen.append(("inner", number))), kept_handlers():
            os.kill(os.getpid(), signal.SIGTERM)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [("inner", signal.SIGTERM), ("outer", signal.SIGTERM)]
