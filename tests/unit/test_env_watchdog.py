"""An environment that hangs in the driver's own process is interrupted and named, and the run ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Stage

from thespis import train
from thespis.core.errors import ThespisError
from thespis.core.watchdog import watch_env
from thespis.envs.toys import Chain
from thespis.runtime import env_watchdog as module
from thespis.runtime.env_watchdog import EnvHang, EnvWatchdog
from thespis.training.trained_run import RunFailed

pytestmark = pytest.mark.timeout(60)
SMALL: dict[str, Any] = {"actors": 1, "envs_per_actor": 2, "eval_episodes": 0, "quiet": True, "total_steps": 5000}


OVER = threading.Event()


def block() -> None:
    OVER.wait(3600.0)


def sleep() -> None:
    time.sleep(3600.0)


def spin() -> None:
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            return


class Hangs(Chain):
    """Hangs in one of its methods."""

    def __init__(self, within: str, how: Callable[[], None]) -> None:
        super().__init__()
        self._within, self._how, self._resets = within, how, 0
        if within == "__init__":
            how()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._resets += 1
        if self._within == "reset" and self._resets == 2:
            self._how()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        if self._within == "step" and self._resets == 2:
            self._how()
        return super().step(action)

    def close(self) -> None:
        if self._within == "close":
            self._how()


@pytest.mark.parametrize("how", [sleep, spin])
@pytest.mark.parametrize(("within", "step"), [("reset", 0), ("step", 1)])
def test_a_simulated_run_names_the_environment_and_ends(
    within: str, step: int, how: Callable[[], None], stage: Stage
) -> None:
    with pytest.raises(RunFailed, match=f"actor 0: EnvError: env 0, episode 1, step {step}: did not return within 0.3"):
        train("impala", env=lambda: Hangs(within, how), on="simulation", run_dir=stage.run, env_timeout=0.3, **SMALL)
    assert '"exit_reason": "error"' in (stage.run / "summary.json").read_text()


@pytest.mark.parametrize("within", ["__init__", "close"])
def test_the_check_before_a_simulated_run_ends_too(within: str, stage: Stage) -> None:
    with pytest.raises(ThespisError, match=rf"env 0: {within} did not return within 0.3 s; raise --env-timeout"):
        train("impala", env=lambda: Hangs(within, sleep), on="simulation", run_dir=stage.run, env_timeout=0.3, **SMALL)
    assert not stage.run.exists()


@pytest.mark.parametrize("blocks", [True, False])
def test_a_run_within_an_event_loop_ends_too(blocks: bool, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the run has its own thread. No signal interrupts its system calls, so the thread is left behind."""
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.5)
    env = lambda: Hangs("step", block if blocks else spin)  # noqa: E731

    async def cell() -> None:
        train("impala", env=env, on="simulation", run_dir=stage.run, env_timeout=0.3, **SMALL)

    try:
        with pytest.raises(ThespisError if blocks else RunFailed, match="actor 0: EnvError: env 0, episode 1, step 1:"):
            asyncio.run(cell())
        assert '"exit_reason": "error"' in (stage.run / "summary.json").read_text()
    finally:
        OVER.set()
        for thread in threading.enumerate():
            if thread.name == "thespis-driver":
                thread.join(20.0)


STUBBORN = """
import time
from thespis.core.watchdog import watch_env
from thespis.runtime import env_watchdog as module

module._GRACE_SECONDS = 0.3
with module.EnvWatchdog(0.2, lambda what: print("gave up", flush=True)), watch_env("make", 3):
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""


def test_what_cannot_be_interrupted_ends_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", STUBBORN], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (1, "gave up\n")
    assert ended.stderr == "thespis: EnvError: env 3: __init__ did not return within 0.2 s, and cannot be interrupted\n"


def test_a_call_that_returns_in_time_is_left_alone() -> None:
    with EnvWatchdog(5.0) as watchdog, watchdog.step("actor 0"):
        time.sleep(0.02)
    assert not [thread for thread in threading.enumerate() if thread.name == "thespis-env-watchdog"]


def test_a_person_in_a_debugger_may_take_time() -> None:
    source = compile("import time\ndef wait():\n    time.sleep(0.5)\n", "bdb.py", "exec")
    frame: dict[str, Any] = {"__name__": "bdb"}
    exec(source, frame)
    with EnvWatchdog(0.1) as watchdog, watchdog.step("actor 0"):
        frame["wait"]()


def test_watchdogs_nest() -> None:
    """The members of a population are runs within a run."""
    with EnvWatchdog(0.1):
        with EnvWatchdog(60.0), watch_env("make"):
            time.sleep(0.3)
        with pytest.raises(EnvHang, match="env 7: __init__ did not return"), watch_env("make", 7):
            sleep()
