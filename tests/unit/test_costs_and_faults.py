"""The inputs of the simulation: cost model and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thespis.core.context import Identity
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.types import Version, VersionedWeights
from thespis.runtime.cost_model import CostModel, WorkCost, message_bytes
from thespis.runtime.faults import Fault, parse_faults
from thespis.runtime.virtual_time import Cores, SimulatedContext, VirtualLoop
from thespis.training.registry import architecture, defaults

RNG = np.random.default_rng(0)


def load(tmp_path: Path, text: str) -> CostModel:
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    return CostModel.load(path)


def test_what_a_file_does_not_name_keeps_its_built_in_value(tmp_path: Path) -> None:
    built_in = CostModel()
    costs = load(tmp_path, "work:\n  env_step: {base: 1e-2, per_item: 1e-3}\nedges:\n  default: {latency: 2e-3}\n")
    assert costs.work_seconds("env_step", 10, RNG) == pytest.approx(0.02)
    assert costs.work_seconds("learn", 7, RNG) == built_in.work_seconds("learn", 7, RNG) > 0
    assert costs.edge_seconds("any", 0, RNG) == 2e-3
    assert costs.edge_seconds("any", 10**9, RNG) == pytest.approx(1.002)
    assert costs.work_seconds("unheard of", 5, RNG) == 0.0


def test_an_edge_of_its_own_and_a_range(tmp_path: Path) -> None:
    text = "edges:\n  default: {bandwidth: 1e6}\n  actor.queue.insert: {latency: [1e-3, 5e-3]}\n"
    costs = load(tmp_path, text)
    drawn = [costs.edge_seconds("actor.queue.insert", 0, RNG) for _ in range(100)]
    assert 1e-3 <= min(drawn) < 2e-3 and 4e-3 < max(drawn) <= 5e-3
    assert costs.edge_seconds("actor.queue.insert", 10**6, RNG) > 1.0, "the default bandwidth applies here too"


def test_work_that_takes_now_longer_now_shorter(tmp_path: Path) -> None:
    costs = load(tmp_path, "work:\n  env_step: {base: [1e-3, 3e-3], per_item: 1e-3, wait: [0, 1e-2]}\n")
    worked = [costs.work_seconds("env_step", 2, RNG) for _ in range(100)]
    assert 3e-3 <= min(worked) < 3.5e-3 and 4.5e-3 < max(worked) <= 5e-3
    waited = [costs.wait_seconds("env_step", RNG) for _ in range(100)]
    assert 0 <= min(waited) < 1e-3 and 9e-3 < max(waited) <= 1e-2


def test_what_needs_a_core_and_what_does_not(tmp_path: Path) -> None:
    text = "cores: 3\nwork: {env_step: {base: 1e-3, wait: 1e-2}}\nedges: {default: {cpu: 2e-5}, a.b.c: {latency: 1}}\n"
    costs = load(tmp_path, text)
    assert (costs.cores, CostModel().cores) == (3, None)
    assert (costs.work_seconds("env_step", 5, RNG), costs.wait_seconds("env_step", RNG)) == (1e-3, 1e-2)
    assert costs.wait_seconds("learn", RNG) == 0.0
    assert (costs.end_seconds("a.b.c"), CostModel().end_seconds("a.b.c")) == (2e-5, 0.0)


@pytest.mark.parametrize(("cores", "seconds"), [(None, 0.01), (4, 0.01), (2, 0.02), (1, 0.04)])
def test_roles_share_the_cores_there_are(cores: int | None, seconds: float) -> None:
    """Four processes work 10 ms each."""
    ends: list[float] = []

    async def role(shared: Cores, process: str) -> None:
        await shared.work(process, 0.01)
        ends.append(asyncio.get_running_loop().time())

    async def all_of_them() -> None:
        shared = Cores(cores)
        await asyncio.gather(*(role(shared, f"actor-{number}") for number in range(4)))

    in_virtual_time(all_of_them())
    assert max(ends) == pytest.approx(seconds)
    if cores == 1:
        assert min(ends) > 0.03, "they take turns"


def in_virtual_time(playing: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop(0.0, lambda now: None)
    asyncio.set_event_loop(loop)
    loop.run_until_complete(playing)
    loop.close()


def test_roles_of_one_process_do_one_thing_at_a_time() -> None:
    async def play() -> None:
        cores = Cores(4)
        await asyncio.gather(*(cores.work("learner-0", 0.01) for _ in range(3)), cores.work("actor-0", 0.01))
        assert asyncio.get_running_loop().time() == pytest.approx(0.03)

    in_virtual_time(play())


@pytest.mark.parametrize(("thread", "seconds"), [(True, 0.01), (False, 0.02)])
def test_a_role_with_a_thread_works_beside_its_process(thread: bool, seconds: float) -> None:
    """A role learns while another role of its process runs inference, 10 ms each."""
    costs = CostModel(work={"learn": WorkCost(0.01), "inference": WorkCost(0.01)}, cores=4)

    async def infer(ctx: SimulatedContext) -> None:
        async with ctx.work("inference"):
            pass

    async def play() -> None:
        loop, cores = asyncio.get_running_loop(), Cores(4)
        assert isinstance(loop, VirtualLoop)
        learner, inference = (
            SimulatedContext(Identity(role, 0, run_seed=0), loop, costs, cores, RNG, "learner-0", threaded)
            for role, threaded in (("learner", thread), ("inference", False))
        )
        await asyncio.gather(learner.run_in_thread("learn", 1, list), infer(inference))
        assert loop.time() == pytest.approx(seconds)

    in_virtual_time(play())


def test_cores_are_shared_fairly() -> None:
    """A process that always wants a core gets no more of it than a process that wants it repeatedly."""
    had = dict.fromkeys(["learner", *(f"actor-{number}" for number in range(4))], 0.0)

    async def work(cores: Cores, process: str, seconds: float) -> None:
        while True:
            await cores.work(process, seconds)
            had[process] += seconds

    async def play() -> None:
        cores = Cores(1)
        working = [work(cores, process, 0.05 if process == "learner" else 0.001) for process in had]
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*working), 10.0)

    in_virtual_time(play())
    assert list(had.values()) == pytest.approx([2.0] * 5, rel=0.05)


def test_who_waited_for_something_else_has_no_claim_to_a_core() -> None:
    """Idle time earns no credit and costs none: after a second of rest a process is like a new one."""
    ends = {}

    async def work(cores: Cores, process: str, rests: float) -> None:
        await cores.work(process, 0.003)
        await asyncio.sleep(rests)
        began = asyncio.get_running_loop().time()
        await cores.work(process, 0.3)
        ends[process] = asyncio.get_running_loop().time() - began

    async def play() -> None:
        cores = Cores(1)
        await asyncio.gather(work(cores, "rested", 1.0), *(cores.work(f"actor-{number}", 2.0) for number in range(2)))

    in_virtual_time(play())
    assert ends["rested"] == pytest.approx(0.9, rel=0.03), "a third of the core, like each of the others"


def test_a_killed_role_gives_its_core_back() -> None:
    async def play() -> None:
        cores = Cores(1)
        killed = [asyncio.ensure_future(cores.work(f"actor-{number}", 1.0)) for number in range(3)]
        await asyncio.sleep(0.0045)  # one process has the core, the others wait
        for role in killed:
            role.cancel()
        await asyncio.gather(*killed, return_exceptions=True)
        before = asyncio.get_running_loop().time()
        await cores.work("learner", 0.01)
        assert asyncio.get_running_loop().time() == pytest.approx(before + 0.01)

    in_virtual_time(play())


@pytest.mark.parametrize(
    "text",
    [
        "works: {}\n",
        "work: {env_step: {bas: 1}}\n",
        "work: {env_step: {per_item: 1}}\n",
        "work: {env_step: 3}\n",
        "work: {env_step: {base: -1}}\n",
        "work: {env_step: {base: [2, 1]}}\n",
        "work: {env_step: {base: 1, wait: .inf}}\n",
        "edges: {default: {latenzy: 1}}\n",
        "edges: {default: {latency: [1, 2, 3]}}\n",
        "edges: {default: {latency: soon}}\n",
        "cores: 0\n",
        "cores: some\n",
        "cores: true\n",
        "edges: {default: {cpu: some}}\n",
        "work: [",
        "- 1\n",
    ],
)
def test_mistakes_in_a_cost_model(text: str, tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="cost model"):
        load(tmp_path, text)


def test_a_cost_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ThespisError, match="cannot be read"):
        CostModel.load(tmp_path / "none")


def test_messages_weigh_what_their_arrays_do() -> None:
    weights = VersionedWeights(Version(0, 1), {"w": np.zeros(1000, np.float32)})
    assert 4000 < message_bytes(weights) < 4200
    assert message_bytes([np.zeros(10), np.zeros(10)]) > 160
    assert message_bytes(None) == 16


@pytest.fixture
def program() -> Program:
    made: Program = architecture("impala").program(defaults("impala", None, {"actors": 2}))
    return made


def test_faults_are_read(program: Program) -> None:
    texts = (
        "kill actor 1 at 2.5",
        " slow actor 0 by 10 ",
        "delay learner.queue.sample by 0.5 at 2",
        "lose actor.queue.insert at 3",
    )
    assert parse_faults(texts, program) == [
        Fault("kill", role="actor", index=1, at=2.5),
        Fault("slow", role="actor", index=0, by=10.0),
        Fault("delay", edge="learner.queue.sample", by=0.5, at=2.0),
        Fault("lose", edge="actor.queue.insert", at=3.0),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kill actor 7 at 1", "there is no actor 7 in impala"),
        ("kill actor 0", "is not understood; write 'kill actor 3 at 2.5'"),
        ("lose queue.actor.insert at 1", "there are actor.queue.insert, actor.weights.pull"),
        ("kill actor 0 at 1.2.3", "is not understood"),
        ("", "is not understood"),
    ],
)
def test_mistakes_in_faults(text: str, words: str, program: Program) -> None:
    with pytest.raises(ThespisError) as error:
        parse_faults((text,), program)
    assert words in str(error.value)
