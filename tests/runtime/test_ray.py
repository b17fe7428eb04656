"""The Ray runtime: cleanup after every end, resume with other actors, lost and added nodes, missing resources."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Stage, until

from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.envs.make import make_envs
from thespis.envs.toys import Chain
from thespis.roles import Queue
from thespis.runs.directory import RunDirectory

sys.path.append(str(Path(__file__).parent.parent / "contract"))
from contract_roles import Consumer, Producer, read

pytestmark = pytest.mark.timeout(120)
FOREVER = 10**9


def directories() -> set[Path]:
    """Return the directories in which local Ray instances keep sockets and logs."""
    return {*Path("/tmp").glob("thespis-ray-*"), *Path(tempfile.gettempdir()).glob("thespis-ray-*")}


def begin(stage: Stage, *flags: object) -> subprocess.Popen[str]:
    """Start a run on its own Ray instance, and wait until it has learned."""
    process = stage.start("train", "impala", *stage.small(), "--on", "ray", "--report-every", 0.1, *flags)
    until(lambda: process.poll() is not None or '"lag/mean"' in metrics(stage), 60.0)
    assert process.poll() is None, process.communicate()
    return process


def metrics(stage: Stage) -> str:
    path = stage.run / "metrics.jsonl"
    return path.read_text() if path.exists() else ""


def users(directory: Path) -> list[str]:
    """Return the titles of processes with an open file in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()).startswith(f"{directory}/") for fd in (entry / "fd").iterdir()):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue  # it has just exited
    return found


def test_an_interrupted_run_goes_on_with_other_actors(stage: Stage) -> None:
    before = directories()
    process = begin(stage, "--total-steps", FOREVER)
    (own,) = directories() - before
    assert users(own), "no Ray instance was started"
    assert own.stat().st_mode & 0o077 == 0, "the directory of Ray is accessible to other users"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert not users(own) and directories() == before
    first = json.loads((stage.run / "summary.json").read_text())
    roles = {"queue 0", "weights 0", "learner 0", "actor 0"}
    assert set(first["nodes"]) == roles and len(set(first["nodes"].values())) == 1

    more = first["env_steps"] + 3_000
    resumed = stage.thespis("resume", stage.run, "--on", "ray", "--actors", 2, "--total-steps", more)
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming update-" in resumed.stderr
    second = json.loads((stage.run / "summary.json").read_text())
    assert second["env_steps"] >= more and second["updates"] > first["updates"]
    assert set(second["nodes"]) == {*roles, "actor 1"}
    assert directories() == before


def test_learners_in_a_ring(stage: Stage) -> None:
    words = f"--run-dir {stage.run} --on ray --learners 2 --actors 2 --all-reduce gloo --envs-per-actor 4"
    ended = stage.thespis("train", "impala", *words.split(), "--eval-episodes", 0, "--total-steps", 4000, seconds=100)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((stage.run / "summary.json").read_text())
    ring = summary["edges"]["learner.learner.all_reduce"]
    assert ring["calls"] >= 2 * summary["updates"] > 0 and ring["bytes"] > 0
    assert summary["learner_events"] == {}


def test_a_killed_driver_leaves_nothing(stage: Stage) -> None:
    before = directories()
    process = begin(stage, "--total-steps", FOREVER)
    (own,) = directories() - before
    assert stat.S_IMODE(own.stat().st_mode) == 0o700, "Ray makes its own directory accessible to all users"
    process.kill()
    process.wait()
    until(lambda: not users(own) and not stage.processes(), 30.0)
    until(lambda: own not in directories(), 30.0)
    RunDirectory(stage.run).sweep()  # remove a checkpoint that was being written, as `resume` does


def test_without_ray_it_says_how_to_install_it(stage: Stage) -> None:
    code = "import sys; sys.modules['ray'] = None; from thespis.cli.main import main; sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, "train", "impala", "--on", "ray", "--run-dir", str(stage.run)],
        capture_output=True,
        text=True,
        env=stage.environment(),
    )
    assert ended.returncode == 2
    assert ended.stderr == "thespis: Ray is not installed; install it with: pip install 'thespis[ray]'\n"
    assert not stage.run.exists()


def test_an_address_where_no_ray_is(stage: Stage) -> None:
    ended = stage.train("--on", "ray", "--ray-address", "127.0.0.1:1", "--total-steps", 100)
    assert ended.returncode == 2
    assert ended.stderr.startswith("thespis: --ray-address 127.0.0.1:1: no Ray answers there")


@pytest.mark.parametrize("on", ["ray"])
def test_no_room_is_said_with_names(on: str, perform: Any, tmp_path: Path) -> None:
    program = Program("large")
    learner = program.at(colocate="learner")
    queue = learner.add("queue", Queue, capacity=2)
    consumed, acked = tmp_path / "taken", tmp_path / "acked"
    learner.add("consumer", Consumer, queue.edge("sample", items=1), consumed, 1, acked)
    program.at(cpus=99, gpus=1).add("producer", Producer, queue.edge("insert"), acked, 1)
    with pytest.raises(ThespisError) as refused:
        perform(program, on, placement_timeout=1.0)
    reported = str(refused.value)
    assert "no room within 1 s: queue-0, consumer-0 ask for 1 CPU on one node" in reported
    assert "producer-0 asks for 99 CPU and 1 GPU on one node" in reported
    assert "4 CPU 1 GPU" in reported


class Opens:
    """A role that makes an environment; the constructor hangs the first time."""

    def __init__(self, ctx: Any, once: Path) -> None:
        def hold() -> Chain:
            if not once.exists():
                once.touch()
                time.sleep(3600.0)
            return Chain()

        self._ctx = ctx
        make_envs(hold, 1)

    async def run(self) -> None:
        self._ctx.count("env_steps")


@pytest.mark.parametrize("on", ["ray"])
def test_an_environment_that_hangs_while_it_is_made_is_named(on: str, perform: Any, tmp_path: Path) -> None:
    program = Program("opens")
    program.at(restarts=1).add("opener", Opens, tmp_path / "once")
    outcome = perform(program, on, total_steps=1, env_timeout=1.0)
    assert "opener 0: EnvError: env 0: __init__ did not return within 1 s; restarting" in outcome.log
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error


class Crashes:
    """A role whose process is killed twice, after `counting` exists; its third process leaves a file."""

    def __init__(self, ctx: Any, counting: Path, survived: Path) -> None:
        self._ctx, self._counting, self._survived = ctx, counting, survived

    async def run(self) -> None:
        while not self._counting.exists():
            await self._ctx.sleep(0.01)
        if self._ctx.identity.restarts < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self._survived.touch()


class Counts:
    """A role that counts a step every few milliseconds until the other survives, then the rest of `steps`."""

    def __init__(self, ctx: Any, counting: Path, survived: Path, steps: int) -> None:
        self._ctx, self._counting, self._survived, self._steps = ctx, counting, survived, steps

    async def run(self) -> None:
        self._counting.touch()
        for _ in range(self._steps - 1):
            self._ctx.count("env_steps")
            if not self._survived.exists():
                await self._ctx.sleep(0.002)
        while not self._survived.exists():
            await self._ctx.sleep(0.01)
        self._ctx.count("env_steps")


@pytest.mark.parametrize("on", ["ray"])
def test_no_report_is_lost_with_another_process(on: str, perform: Any, tmp_path: Path) -> None:
    files, steps = (tmp_path / "counting", tmp_path / "survived"), 20_000
    program = Program("reports")
    program.at(restarts=2).add("crasher", Crashes, *files)
    program.at().add("counter", Counts, *files, steps)
    outcome = perform(program, on, total_steps=steps)
    assert outcome.summary["restarts"] == 2
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["env_steps"] == steps


@pytest.mark.parametrize("on", ["ray"])
def test_a_node_that_does_not_see_the_run_directory(on: str, perform: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("thespis.runtime.session.Session.topology", lambda *_: None)
    program = Program("blind")
    queue = program.at().add("queue", Queue, capacity=2)
    program.at().add("producer", Producer, queue.edge("insert"), tmp_path / "acked", 1)
    outcome = perform(program, on)
    assert outcome.summary["exit_reason"] == "error"
    assert "queue-0 runs on node" in outcome.error
    assert "does not see the run directory" in outcome.error
    assert "give --run-dir a path that all nodes share" in outcome.error


@pytest.mark.parametrize("on", ["ray"])
def test_a_node_is_lost_and_another_added(on: str, perform: Any, ray_cluster: Any, tmp_path: Path) -> None:
    items = 400
    program = Program("experience")
    queue = program.at(colocate="learner").add("queue", Queue, capacity=3)
    acked = [tmp_path / f"acked-{index}" for index in range(2)]
    sample = queue.edge("sample", items=2)
    program.at(colocate="learner", gpus=1).add("consumer", Consumer, sample, tmp_path / "taken", 2, acked[0])
    for journal in acked:  # more CPUs than the permanent nodes have; only one of these has a GPU
        program.at(cpus=5, restarts=2).add("producer", Producer, queue.edge("insert"), journal, items)
    doomed = ray_cluster.add_node(num_cpus=10, object_store_memory=200 << 20)

    with ThreadPoolExecutor() as pool:
        run = pool.submit(perform, program, on, total_steps=2, stall_timeout=60.0)
        until(lambda: run.done() or all(len(read(journal)) > 20 for journal in acked), 60.0)
        ray_cluster.remove_node(doomed, allow_graceful=False)
        added = ray_cluster.add_node(num_cpus=10, object_store_memory=200 << 20)
        outcome = run.result()
    ray_cluster.remove_node(added)
    assert outcome.summary["exit_reason"] == "total_steps", outcome.error
    assert outcome.summary["restarts"] == 2
    assert outcome.log.count("was lost with its node") == 2
    taken = [tuple(tag) for tag in read(tmp_path / "taken")]
    assert len(taken) == len(set(taken)), "an item was used twice"
    sure = {tuple(tag) for journal in acked for tag in read(journal) if tag[2] < items}
    assert sure <= set(taken), "an acknowledged item is lost"
