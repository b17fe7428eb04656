"""Runs programs and command lines in tests, and checks that they leave nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from thespis.core.config import Experiment
from thespis.core.program import Program
from thespis.core.system.reaper import marked

ROOT = Path(__file__).parent.parent
MARK = "THESPIS_TEST_STAGE"
SLOW = Path(__file__).parent / "slow.txt"
STALE = pytest.StashKey[list[str]]()

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy machine must not fail a test
hypothesis.settings.load_profile("any machine")


def pytest_configure() -> None:
    """Undo nohup, because every command that a test starts would ignore SIGHUP too."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that slow.txt names. test_house.py fails if a line names no test."""
    slow = {line for line in SLOW.read_text().splitlines() if line and not line.startswith("#")}
    for item in items:
        if slow & _names(item):
            item.add_marker(pytest.mark.slow)
    config.stash[STALE] = unmatched(slow, items)


def unmatched(lines: Iterable[str], items: Sequence[pytest.Item]) -> list[str]:
    """Return the lines that name no test although their module was collected or does not exist."""
    known = {name for item in items for name in _names(item)}
    collected = {item.path.name for item in items}
    uncollected = {path.name for path in SLOW.parent.rglob("test_*.py")} - collected
    return sorted(line for line in lines if line not in known and line.partition("::")[0] not in uncollected)


def _names(item: pytest.Item) -> set[str]:
    """Return the names of a test in slow.txt: with its parameters, or without them, for all parameters."""
    return {f"{item.path.name}::{item.name}", f"{item.path.name}::{item.name.partition('[')[0]}"}


def until(condition: Callable[[], Any], seconds: float = 50.0) -> Any:
    """Wait until `condition` returns a true value, and return it; fail the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    pytest.fail(f"waited {seconds:g} s in vain")


def newest(run: Path) -> Path:
    """Return the newest checkpoint of a run, by its number of updates."""
    return max((run / "checkpoints").glob("update-*"), key=lambda path: path.name)


class Stage:
    """Runs commands in a temporary directory, and marks their processes by an environment variable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path / "run"
        self.temporary = path / "tmp"
        self.temporary.mkdir()
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def environment(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "runtime")])
        return {**os.environ, name: value, "TMPDIR": str(self.temporary), "PYTHONPATH": paths, "COLUMNS": "200"}

    def thespis(self, *words: object, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; return it with its output."""
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail(f"no end after {seconds:g} s:\n{''.join(process.communicate())}")
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def train(self, *flags: object, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        return self.thespis("train", "impala", *self.small(), *flags, seconds=seconds)

    def small(self) -> list[str]:
        """Return the flags of a minimal run."""
        return f"--run-dir {self.run} --actors 1 --envs-per-actor 2 --eval-episodes 0".split()

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start a command in the background."""
        process = subprocess.Popen(
            [sys.executable, "-m", "thespis.cli.main", *map(str, words)],
            cwd=self.path,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def processes(self) -> list[int]:
        """Return the live processes with the mark, at any depth of descendants."""
        return marked(self.mark)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep code that tests train with out of the trust records of the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of two nodes that the tests share, so that some edges cross between nodes."""
    import logging

    import ray
    from ray._common.utils import get_default_ray_temp_dir
    from ray.cluster_utils import Cluster

    # A cluster writes its address there, which fails on a machine where Ray never ran.
    Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
    logging.getLogger("ray").setLevel(logging.ERROR)
    os.environ["RAY_AUTH_TOKEN"] = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="ray-") as short:  # names of sockets have at most 107 characters
        node = {"num_cpus": 4, "object_store_memory": 200 << 20}
        head = {
            **node,
            "num_gpus": 1,
            "temp_dir": short,
            "include_dashboard": False,
        }  # a declared GPU, which need not exist
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(**node)
        ray.init(cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage that must be empty soon after the test: no process, descriptor, shared memory or partial file."""
    on_ray = getattr(request.node, "callspec", None) and request.node.callspec.params.get("on") == "ray"
    if on_ray:
        request.getfixturevalue("ray_cluster")  # lives longer than the test, so it must exist before the first check
    stage = Stage(tmp_path)
    name, _, value = stage.mark.partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(stage.temporary))
    monkeypatch.setattr(tempfile, "tempdir", str(stage.temporary))
    shared, descriptors = _shared(), _descriptors()
    yield stage
    stage.close()
    deadline = time.monotonic() + 20.0
    while stage.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    left = stage.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left"
    assert _shared() <= shared, "shared memory is left"
    # torch makes its per-user cache directory there when it is first imported.
    assert not [entry for entry in stage.temporary.iterdir() if not entry.name.startswith("torchinductor_")]
    if [name for name in _descriptors() if name not in descriptors]:
        gc.collect()  # a simulated role closes its shared memory when it is collected
    if not on_ray:  # Ray opens connections as it needs them
        assert not [name for name in _descriptors() if name not in descriptors], "descriptors are left"
    assert not list(tmp_path.rglob(".tmp-*")), "half-written files are left"


@pytest.fixture
def one_torch_thread() -> Iterator[None]:
    """Use one torch thread: for small networks, and for results that do not depend on the number of cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _shared() -> set[str]:
    """Return named shared memory, except that of Ray and of libraries, which other tests may use at the same time."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("plasma", "ray", "sem.mp-"))}


def _descriptors() -> list[str]:
    """Return the open descriptors of this process, without files of the interpreter (captured output, caches)."""
    targets = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            targets.append(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue  # the descriptor of the listing itself
    return [target for target in targets if "/proc/" not in target]


@dataclass
class Outcome:
    """The outcome of a program that `perform` ran."""

    summary: dict[str, Any]
    error: str | None
    log: str
    path: Path


@pytest.fixture
def perform(stage: Stage) -> Callable[..., Outcome]:
    """Runs a program of test roles: `perform(program, "local", total_steps=2)`. Its roles count the steps."""

    def run(program: Program, on: str, faults: tuple[str, ...] = (), **settings: Any) -> Outcome:
        from thespis.runs.directory import RunDirectory
        from thespis.runs.terminal.screen import Screen
        from thespis.runtime.cost_model import CostModel
        from thespis.runtime.faults import parse_faults
        from thespis.runtime.local import LocalSupervisor
        from thespis.runtime.session import Session
        from thespis.runtime.simulation import Simulation

        program.check()
        cfg = Experiment(on=on, **{"stall_timeout": 20.0, **settings})  # type: ignore[arg-type]
        directory = RunDirectory.create("test", "none", 0, stage.run)
        session = Session(cfg, program, directory, Screen(quiet=True))
        try:
            if on == "simulation":
                summary = Simulation(program, session, CostModel(), parse_faults(faults, program)).run(None)
            elif on == "ray":
                from thespis.runtime.ray import RaySupervisor

                summary = RaySupervisor(program, session).run(None)
            else:
                summary = LocalSupervisor(program, session).run(None)
        finally:
            session.close()
        return Outcome(summary, session.error, directory.log.read_text(), directory.path)

    return run
