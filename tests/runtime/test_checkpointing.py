"""The driver while a checkpoint is digested, written or verified: its event loop keeps running, and nothing is lost.

The processes are fakes, so a test decides when each of them dies and how long the disk takes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thespis.core.config import Experiment
from thespis.core.context import Report
from thespis.core.program import Program
from thespis.core.service import Method, RoleDescription
from thespis.core.system import commit
from thespis.runs.checkpoints import read_meta, save_role
from thespis.runs.directory import RunDirectory
from thespis.runs.terminal.screen import Screen
from thespis.runtime import supervisor
from thespis.runtime.managed_process import ProcessExited
from thespis.runtime.role_process import StartCommand
from thespis.runtime.session import Session
from thespis.runtime.supervisor import Supervisor

pytestmark = pytest.mark.timeout(60)
NEVER = 10**9


class Learner:
    """A role that holds the weights."""

    description = RoleDescription(publishes=True)

    def __init__(self, ctx: Any) -> None: ...
    async def run(self) -> None: ...
    def state(self) -> None: ...
    def restore(self) -> None: ...


class Actor:
    """A role without state."""

    def __init__(self, ctx: Any) -> None: ...
    async def run(self) -> None: ...


class Store:
    """A store of weights that is empty after a restart."""

    description = RoleDescription(methods={"publish": Method("weights"), "pull": Method("weights")})

    def __init__(self, ctx: Any) -> None: ...
    async def publish(self) -> None: ...
    async def pull(self) -> None: ...


class Evaluator:
    """An evaluator of the store's weights."""

    description = RoleDescription(evaluates=True)

    def __init__(self, ctx: Any, pull: Any) -> None: ...
    async def evaluate(self) -> None: ...


class Publisher(Learner):
    """A learner that publishes its weights to the store."""

    def __init__(self, ctx: Any, publish: Any) -> None: ...


class Process:
    """A process that replies at once."""

    ending = "was killed"
    failure = None

    def __init__(self, name: str) -> None:
        self.name, self.up = name, False

    def kill(self) -> None: ...


class Stand(Supervisor):
    """A supervisor of fake processes. Each is up as soon as it starts, and saves when asked."""

    def __init__(self, program: Program, session: Session) -> None:
        super().__init__(program, session)
        self.living: dict[str, Process] = {}
        self.started: list[tuple[str, str | None]] = []
        self.updates = 0

    @property
    def _processes(self) -> dict[str, Process]:
        return self.living

    def _start(self, name: str, plan: StartCommand) -> None:
        self.living[name] = Process(name)
        self.started.append((name, None if plan.restore is None else plan.restore.name))
        self._on_message(self.living[name], ("reports", [self.report(name)]))

    def report(self, name: str) -> Report:
        self.updates += 1
        return Report(name.partition("-")[0], 0, counters={"updates": 1, "env_steps": 1})

    async def _send_command(self, name: str, kind: str, *args: Any) -> Any:
        await asyncio.sleep(0)
        if name not in self.living:
            raise ProcessExited(f"{name} was killed")
        if kind == "save":
            save_role(Path(args[0]), "learner", 0, {"weights/w": np.full(3, self.updates, np.float32)}, {})

    def _locations(self) -> dict[str, Any]:
        return {"living": list(self.living)}

    async def _dump_stacks(self) -> None: ...

    def _kill(self) -> None:
        self.living.clear()

    def die(self, name: str) -> None:
        self._on_ended(self.living.pop(name))


class Gate:
    """Makes a function wait until the test opens the gate. `late`: the driver was blocked until the wait timed out."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = self.inside = self.most = 0
        self.late = False

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any) -> Any:
            self.entered += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.late |= not self._open.wait(10.0)
            try:
                return function(*args)
            finally:
                self.inside -= 1

        return gated

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stand]:
    monkeypatch.setattr(supervisor, "_BACK_OFF", (0.0,))
    monkeypatch.setattr(supervisor, "_TICK_SECONDS", 0.001)
    program = Program("test")
    for role, kind in (("learner", Learner), ("actor", Actor)):
        program.at(restarts=5).add(role, kind)
    cfg = Experiment(on="local", total_steps=NEVER, report_every=0.001, checkpoint_every=0.001, keep=1)
    session = Session(cfg, program, RunDirectory.create("test", "none", 0, tmp_path / "run"), Screen(quiet=True))
    yield Stand(program, session)
    session.close()
    assert not list(tmp_path.rglob(".tmp-*")), "partial files are left"


def play(stand: Stand, scene: Callable[[], Awaitable[None]], restore: Path | None = None) -> dict[str, Any]:
    """Run until the scene ends."""

    async def run() -> dict[str, Any]:
        running = asyncio.create_task(stand._run(restore))
        try:
            await scene()
        finally:
            stand._session.end("interrupted")
        return await running

    return asyncio.run(run())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def rows(stand: Stand) -> int:
    metrics = stand._session.run.metrics
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


async def goes_on(stand: Stand) -> None:
    """Wait for new rows of metrics."""
    before = rows(stand)
    await until(lambda: rows(stand) > before + 2)


def saved(stand: Stand) -> list[str]:
    return sorted(path.name for path in stand._session.run.checkpoints.glob("update-*"))


def log(stand: Stand) -> str:
    return stand._session.run.log.read_text()


def test_the_driver_goes_on_while_a_checkpoint_is_written(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    async def scene() -> None:
        await until(lambda: saved(stand))
        monkeypatch.setattr(commit, "_digest", gate.around(commit._digest))
        await until(lambda: gate.entered)
        before = saved(stand)
        await goes_on(stand)
        stand.die("actor-0")
        await until(lambda: len(stand.started) == 3)
        assert saved(stand) == before and gate.inside == 1
        gate.open()

    summary = play(stand, scene)
    assert not gate.late, "the driver's event loop waited for the disk"
    assert gate.most == 1, "two checkpoints were written at the same time"
    assert summary["checkpoint"] == saved(stand)[-1]


def test_the_driver_goes_on_while_a_checkpoint_is_verified(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    async def scene() -> None:
        await until(lambda: saved(stand))
        monkeypatch.setattr(commit, "verify", gate.around(commit.verify))
        stand.die("learner-0")
        await until(lambda: gate.entered)
        await goes_on(stand)
        assert "learner-0" not in stand.living
        gate.open()
        await until(lambda: "learner-0" in stand.living)

    play(stand, scene)
    assert not gate.late, "the driver's event loop waited for the disk"
    assert stand.started[-1][1] is not None and "learner-0 resumes from update-" in log(stand)


def test_no_process_is_started_once_the_run_has_ended(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while a restart verifies its checkpoint."""
    gate = Gate()

    async def scene() -> None:
        await until(lambda: saved(stand))
        monkeypatch.setattr(commit, "verify", gate.around(commit.verify))
        stand.die("learner-0")
        await until(lambda: gate.entered)
        stand._session.end("interrupted")
        await asyncio.sleep(0.01)
        gate.open()

    summary = play(stand, scene)
    assert not gate.late, "the driver's event loop waited for the disk"
    assert [name for name, _ in stand.started] == ["learner-0", "actor-0"]
    assert summary["checkpoint"] == saved(stand)[-1]


def test_an_interrupt_waits_for_the_checkpoint_under_way(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be cancelled: the run completes its checkpoint, then writes the last one."""
    gate, result = Gate(), list[str]()

    async def scene() -> None:
        await until(lambda: saved(stand))
        monkeypatch.setattr(stand._session.callbacks, "checkpoint", lambda path: result.append(path.name))
        monkeypatch.setattr(commit, "_digest", gate.around(commit._digest))
        await until(lambda: gate.entered)
        result.clear()
        stand._session.end("interrupted")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert gate.inside == 1 and not result
        gate.open()

    summary = play(stand, scene)
    assert not gate.late and gate.most == 1
    assert len(result) == 2 and saved(stand) == [result[1]] == [summary["checkpoint"]]
    found = stand._session.checkpoints.newest_valid().path
    assert found is not None and read_meta(found)["env_steps"] == summary["env_steps"]
    assert not stand._session.error


def test_nothing_is_synced_or_digested_on_the_event_loop(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's thread never calls fsync: at the start, for checkpoints, for restarts, and at the end."""
    calls = list[str]()

    def watched(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def watch(*args: Any) -> Any:
            with suppress(RuntimeError):  # in a thread without an event loop
                asyncio.get_running_loop()
                calls.append("".join(traceback.format_stack()))
            return function(*args)

        monkeypatch.setattr(owner, name, watch)

    async def scene() -> None:
        for round_number in (1, 2):
            await until(lambda: saved(stand))
            for name in ("actor-0", "learner-0"):
                stand.die(name)
            await until(lambda: len(stand.started) == 2 * round_number + 2)  # noqa: B023

    watched(os, "fsync")
    watched(commit, "_digest")
    watched(commit, "verify")
    play(stand, scene)
    assert not calls, calls[0]


def test_a_full_disk_is_said_and_the_next_checkpoint_is_saved(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def scene() -> None:
        await until(lambda: stand._session._checkpoint)  # also synced, because its directory is renamed before
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            await until(lambda: "checkpoint not saved" in log(stand))
        before = saved(stand)
        stand._on_report(stand.report("learner-0"))
        await until(lambda: saved(stand) and saved(stand) != before)

    summary = play(stand, scene)
    assert "No space left on device); the previous one (update-" in log(stand)
    assert "is intact and training continues" in log(stand)
    assert summary["checkpoint"] == saved(stand)[-1] and not stand._session.error


def test_a_checkpoint_that_a_process_starts_from_stays(stand: Stand) -> None:
    """A checkpoint is found before a commit that prunes all others, and read after it."""
    checkpoints = stand._session.checkpoints

    def save(update: int) -> Path:
        staging = checkpoints.stage()
        save_role(staging, "learner", 0, {"weights/w": np.zeros(3, np.float32)}, {})
        return checkpoints.commit(staging, {"update": update, "score": float(update)})

    async def run() -> None:
        first = save(1)
        finding = asyncio.create_task(stand._checkpointer.reserve_newest("learner-0"))
        await asyncio.sleep(0)
        await stand._checkpointer._in_thread(save, 2)
        assert (await finding).path == first and first.exists()
        checkpoints.release("learner-0")
        save(3)
        assert not first.exists()
        await stand._checkpointer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("restarts", "learner", "evaluates"), [(0, True, True), (0, False, True), (1, True, True), (1, False, False)]
)
def test_the_final_evaluation_does_not_wait_for_lost_weights(
    restarts: int, learner: bool, evaluates: bool, tmp_path: Path
) -> None:
    """A restarted store is empty until the learner publishes, and here the learner is dead."""
    program = Program("test")
    store = program.at().add("store", Store)
    program.at().add("learner", Publisher, publish=store.edge(Store.publish))
    program.at().add("evaluator", Evaluator, pull=store.edge(Store.pull))
    run = RunDirectory.create("test", "none", 0, tmp_path / "run")
    session = Session(Experiment(on="local"), program, run, Screen(quiet=True))
    stand, asked = Stand(program, session), []
    stand.living = {name: Process(name) for name in program.processes if learner or name != "learner-0"}
    stand._restarts["store-0"] = restarts

    async def evaluate() -> None:
        async def ask(name: str, kind: str, *args: Any) -> None:
            asked.append(name)

        stand._send_command = ask  # type: ignore[method-assign]
        for member in stand.living.values():
            member.up = True
        await stand._evaluate([])

    asyncio.run(evaluate())
    session.close()
    assert asked == (["evaluator-0"] if evaluates else [])
    said = "no final evaluation: learner-0 was not running at the end" in run.log.read_text()
    assert said == (not evaluates)
