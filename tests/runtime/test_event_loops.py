"""A run that starts inside a running event loop, as in a notebook, and the state of that loop afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from conftest import Stage

from thespis import train
from thespis.runtime.driver_thread import run_program
from thespis.runtime.simulation import Simulation

SMALL: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "unroll_length": 5, "eval_episodes": 0, "quiet": True}
STEPS = 600


def simulate(path: Path, **settings: Any) -> Any:
    return train("impala", on="simulation", run_dir=path, **{"total_steps": STEPS, **SMALL, **settings})


async def within_a_loop(function: Callable[..., Any], *args: Any, **settings: Any) -> tuple[Any, Any]:
    """Call the function inside a loop, and check that the loop still works; return its result."""
    result = function(*args, **settings)
    return result, await asyncio.sleep(0, "works")


def test_a_simulation_within_a_running_loop_is_the_same_run(stage: Stage) -> None:
    alone = simulate(stage.path / "alone")
    run, loop = asyncio.run(within_a_loop(simulate, stage.path / "within"))
    assert loop == "works"
    assert run.summary["weights_sha256"] == alone.summary["weights_sha256"]
    assert (run.path / "metrics.jsonl").read_bytes() == (alone.path / "metrics.jsonl").read_bytes()


def test_a_local_run_within_a_running_loop(stage: Stage) -> None:
    run, _ = asyncio.run(within_a_loop(train, "impala", run_dir=stage.run, total_steps=300, **SMALL))
    assert run.summary["exit_reason"] == "total_steps"
    assert run.policy.act([0.0] * 4) in (0, 1)


def test_a_simulation_leaves_the_event_loop_of_its_thread(stage: Stage) -> None:
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        simulate(stage.run, total_steps=100)
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class StopButton(gymnasium.Wrapper):
    """Interrupts the process at its thousandth step, like the stop button of a notebook."""

    steps = 0

    def step(self, action: Any) -> Any:
        StopButton.steps += 1
        if StopButton.steps == 1000:
            os.kill(os.getpid(), signal.SIGINT)
        return super().step(action)


def stop_button() -> gymnasium.Env[Any, Any]:
    return StopButton(gymnasium.make("CartPole-v1"))


def test_the_stop_button_ends_a_run_in_order(stage: Stage) -> None:
    before = signal.getsignal(signal.SIGINT)
    run, loop = asyncio.run(within_a_loop(simulate, stage.run, env=stop_button, total_steps=10**9))
    assert run.summary["exit_reason"] == "interrupted" and loop == "works"
    assert len(list(run.path.glob("checkpoints/update-*"))) == 1
    assert signal.getsignal(signal.SIGINT) is before


class Patient:
    """A runtime that ends at an interrupt or, if `stubborn`, only when it is abandoned."""

    def __init__(self, stubborn: bool) -> None:
        self.calls: list[str] = []
        self._stubborn = stubborn
        self._end = threading.Event()

    def run(self, restore: Path | None) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        self._end.wait(30.0)
        return {"thread": threading.current_thread()}

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        if self._stubborn:
            os.kill(os.getpid(), signal.SIGINT)  # a second interrupt
        else:
            self._end.set()

    def abandon(self) -> None:
        self.calls.append("abandon")
        self._end.set()


def test_an_interrupt_reaches_a_run_in_its_own_thread() -> None:
    patient = Patient(stubborn=False)
    summary, _ = asyncio.run(within_a_loop(run_program, patient, None))
    assert patient.calls == ["interrupt"] and summary["thread"] is not threading.main_thread()


def test_a_second_interrupt_ends_it_at_once() -> None:
    patient = Patient(stubborn=True)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(within_a_loop(run_program, patient, None))
    assert patient.calls == ["interrupt", "abandon"]
    assert "thespis-driver" not in [thread.name for thread in threading.enumerate()]


def test_a_failed_start_leaves_no_directory(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Simulation, restore: Path | None) -> dict[str, Any]:
        raise OSError("too many open files")

    monkeypatch.setattr(Simulation, "run", fail)
    with pytest.raises(OSError, match="too many open files"):
        simulate(stage.run)
    assert not stage.run.exists()
    stage.run.mkdir()
    with pytest.raises(OSError, match="too many open files"):
        asyncio.run(within_a_loop(simulate, stage.run))
    assert not list(stage.run.iterdir()), "only files from before remain"
