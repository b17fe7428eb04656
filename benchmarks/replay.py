"""Measures the speed and the memory of the replay buffer, in one process next to TorchRL's, and across processes.

In process: a million transitions like CartPole's, sampled by priority in batches of 512, inserted in unrolls of 400,
and 512 priorities set. Across processes: on the local runtime, actors insert stacks of Atari frames as fast as they
can, and a learner only samples batches of 512 and sends priorities back.

    python benchmarks/replay.py                 everything: about a minute and 2 GB
    python benchmarks/replay.py --shards 2      two shards across processes

TorchRL is not a dependency of this project. It is measured too if it is installed; its sum tree is C++.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

from thespis.core.config import Experiment
from thespis.core.context import Context, Identity
from thespis.core.program import Program
from thespis.core.system.cores import available_cores
from thespis.core.types import Array, Inputs, ReplaySample, Stream, Unroll
from thespis.experience.limiters import SamplesPerInsert
from thespis.experience.n_step import NStep
from thespis.experience.samplers import Prioritised
from thespis.experience.sources import ReplaySource, StreamInsert
from thespis.experience.step_storage import StepLayout, StepStorage
from thespis.roles import Replay
from thespis.runs.directory import RunDirectory
from thespis.runs.terminal.screen import Screen
from thespis.runtime.checkpointing import Checkpointer
from thespis.runtime.local import LocalSupervisor
from thespis.runtime.session import Session

BATCH, ENVS, STEPS = 512, 8, 50
FREE = SamplesPerInsert(1.0, 1, 1e18)  # no call ever waits
ATARI, CARTPOLE = np.zeros((4, 84, 84), np.uint8), np.zeros(4, np.float32)


class StandaloneContext(Context):
    """The context of a role without a runtime."""

    def now(self) -> float:
        return time.perf_counter()

    @asynccontextmanager
    async def work(self, kind: str, items: int = 1) -> Any:
        yield


def replay(ctx: Context, obs: Array, capacity: int, limiter: SamplesPerInsert) -> Replay:
    steps = StepStorage(StepLayout.of(obs, np.empty((), np.int64)), capacity)
    return Replay(ctx, steps, NStep(3, 0.99), Prioritised(capacity, 0.6, 0.4), limiter, lambda rewards: rewards)


def unroll(like: Array, episode: int) -> Unroll:
    """Make an unroll of 50 steps of 8 environments, with a mean episode length of `episode` steps."""
    rng = np.random.default_rng(0)
    stacked = like.ndim == 3
    frame = like.shape[1:] if stacked else like.shape
    frames = rng.integers(0, 256, (STEPS + 4, ENVS, *frame)).astype(like.dtype)
    obs = np.stack([frames[t : t + STEPS + 1] for t in range(4)], 2) if stacked else frames[: STEPS + 1]
    terminated = rng.random((STEPS, ENVS)) < 1.0 / episode
    first = np.concatenate([np.zeros((1, ENVS), np.bool_), terminated])
    if stacked:  # the frames at an episode's start are new
        obs[first] = rng.integers(0, 256, (int(first.sum()), *like.shape), np.uint8)
    actions, rewards = rng.integers(0, 2, (STEPS, ENVS)), np.ones((STEPS, ENVS), np.float32)
    before = np.concatenate([actions[:1], actions]), np.concatenate([rewards[:1], rewards])
    return Unroll(
        inputs=Inputs(obs, first, *before),
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        truncated=np.zeros_like(terminated),
        valid=np.ones_like(terminated),
        behaviour_logp=np.zeros_like(rewards),
        state=(),
        versions=np.zeros((STEPS, ENVS), np.int64),
        final_index=np.empty((0, 2), np.int64),
        final_obs=obs[0, :0],
    )


def seconds(work: Callable[[], Any], budget: float = 1.0) -> float:
    """Return the median duration of single calls, which other load on the machine affects little."""
    work()
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return median(times)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def say(who: str, what: str, each: float, items: int, nbytes: int) -> None:
    print(f"{who:<10}{what:<34}{1e6 * each:>9.0f} us{items / each:>14,.0f} items/s{nbytes / each / 1e6:>10,.0f} MB/s")


def size(drawn: Any) -> int:
    return sum(part.nbytes for name in drawn.__slots__ if isinstance(part := getattr(drawn, name), np.ndarray))


async def ours(items: int) -> None:
    table = replay(StandaloneContext(Identity("replay", 0, run_seed=0)), CARTPOLE, items, FREE)
    some = unroll(CARTPOLE, 200)
    rng, stream = np.random.default_rng(0), Stream(("actor", 0), 1)
    while table._steps.written < items:
        await table.insert(stream, some)
    sampler: Any = table._sampler
    every = np.flatnonzero(sampler.holds(np.arange(items)))
    sampler.prioritise(every, rng.random(len(every)))
    drawn = await table.sample(BATCH)
    priorities = rng.random(BATCH).astype(np.float32)

    def act(method: Any, *args: Any) -> Callable[[], None]:
        """Return a function that runs a coroutine without an event loop; the coroutine never waits."""

        def once() -> None:
            made = method(*args)
            try:
                while True:
                    made.send(None)
            except StopIteration:
                pass

        return once

    tree = sampler._tree
    masses = (np.arange(BATCH) + rng.random(BATCH)) * (tree.total / BATCH)
    say("thespis", f"find {BATCH} leaves in the tree", seconds(lambda: tree.find(masses)), BATCH, 0)
    say("thespis", f"choose {BATCH}, with weights", seconds(lambda: sampler.weigh(sampler.draw(BATCH, rng))), BATCH, 0)
    say("thespis", f"sample {BATCH} transitions", seconds(act(table.sample, BATCH)), BATCH, size(drawn))
    say("thespis", f"insert {STEPS * ENVS}", seconds(act(table.insert, stream, some)), STEPS * ENVS, some_bytes(some))
    say("thespis", f"set {BATCH} priorities", seconds(act(table.prioritise, drawn.keys, priorities)), BATCH, 0)


def some_bytes(some: Unroll) -> int:
    obs: Any = some.inputs.obs
    return int(obs.nbytes + some.actions.nbytes + some.rewards.nbytes + some.terminated.nbytes + some.versions.nbytes)


def torchrl(items: int) -> None:
    """Measure TorchRL's prioritised buffer, which also stores the next observation of every transition."""
    try:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer

        sampler = PrioritizedSampler(max_capacity=items, alpha=0.6, beta=0.4)
    except Exception as error:
        print(f"torchrl   not measured: {type(error).__name__}: {str(error)[:80]}")
        return
    torch.set_num_threads(1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(items), sampler=sampler, batch_size=BATCH)

    def made(number: int) -> Any:
        obs, flags = torch.zeros(number, 4), torch.zeros(number, dtype=torch.bool)
        columns = {"obs": obs, "next_obs": obs, "action": torch.zeros(number, dtype=torch.int64)}
        return TensorDict({**columns, "reward": torch.zeros(number), "done": flags}, batch_size=[number])

    for _ in range(0, items, 100_000):
        buffer.extend(made(min(100_000, items)))
    buffer.update_priority(torch.arange(items), torch.rand(items))
    some, where, priorities = made(STEPS * ENVS), torch.randint(0, items, (BATCH,)), torch.rand(BATCH)
    tree = sampler._sum_tree
    masses = (torch.arange(BATCH) + torch.rand(BATCH)) * (float(tree.query(0, items)) / BATCH)
    masses = masses.to(torch.float32)
    say("torchrl", f"find {BATCH} leaves in the tree", seconds(lambda: tree.scan_lower_bound(masses)), BATCH, 0)
    chosen = seconds(lambda: sampler.sample(buffer._storage, BATCH))
    say("torchrl", f"choose {BATCH}, with weights", chosen, BATCH, 0)
    nbytes = buffer.sample().bytes()
    say("torchrl", f"sample {BATCH} transitions", seconds(lambda: buffer.sample()), BATCH, nbytes)
    say("torchrl", f"insert {STEPS * ENVS}", seconds(lambda: buffer.extend(some)), STEPS * ENVS, some.bytes())
    say("torchrl", f"set {BATCH} priorities", seconds(lambda: buffer.update_priority(where, priorities)), BATCH, 0)


def memory(name: str, obs: Array, items: int, episode: int) -> None:
    """Measure the resident memory per transition, next to the minimum.

    The minimum is one observation (one frame of a stack), action, reward, end, version, next row and priority.
    """
    rows = items + 8 * ENVS  # the last steps have no complete window yet
    some = unroll(obs, episode)
    before = resident()
    table = replay(StandaloneContext(Identity("replay", 0, run_seed=0)), obs, rows, FREE)

    async def fill() -> None:
        while table._steps.written < rows:
            await table.insert(Stream(("actor", 0), 1), some)

    asyncio.run(fill())
    least = (obs[0] if obs.ndim == 3 else obs).nbytes + 8 + 4 + 1 + 8 + 8 + 8
    held = table._sampler.items
    each = (resident() - before) / held
    print(f"{name:<12}{held:>10,} transitions{each:>10.1f} bytes each, at least {least:,}: {each / least:.3f}")


# -- across processes ---------------------------------------------------------------------------------


class UnrollSender:
    """An actor without environments and policy: it inserts the same unroll again and again, one call ahead."""

    def __init__(self, ctx: Context, insert: Any) -> None:
        self._ctx, self._insert = ctx, StreamInsert(ctx, insert)

    async def run(self) -> None:
        some, handed = unroll(ATARI, 1000), None
        while True:
            if handed is not None:
                await handed
            handed = self._ctx.ahead(self._insert(some))
            await asyncio.sleep(0)


class SampleReader:
    """A learner that only samples batches and sends priorities back."""

    def __init__(self, ctx: Context, samples: Any, prioritise: Any) -> None:
        self._ctx, self._source = ctx, ReplaySource(ctx, samples, BATCH, 1, prioritise)

    async def run(self) -> None:
        while True:
            batch: ReplaySample = await self._source.next()
            await self._source.done(batch, np.abs(batch.rewards))
            self._ctx.count("env_steps")
            self._ctx.count("updates")

    async def close(self) -> None:
        await self._source.close()


def across(items: int, actors: int, shards: int, batches: int) -> None:
    p = Program("replay")
    tables = [p.at().add("replay", replay, ATARI, capacity=items // shards, limiter=FREE) for _ in range(shards)]
    sample = tuple(table.edge("sample", items=BATCH // shards) for table in tables)
    p.at().add("learner", SampleReader, sample, tuple(table.edge("prioritise") for table in tables))
    for index in range(actors):
        p.at().add("actor", UnrollSender, tables[index % shards].edge("insert", items=STEPS * ENVS))
    p.check()
    with tempfile.TemporaryDirectory() as place:
        cfg = Experiment(total_steps=batches, checkpoint_every=1e9, report_every=1.0)
        session = Session(cfg, p, RunDirectory.create("replay", "none", 0, Path(place) / "run"), Screen(quiet=True))
        # No checkpoint at the end: the state of a replay buffer of frames is not part of the measurement.
        with patch.object(Checkpointer, "save", _skip):
            try:
                result = LocalSupervisor(p, session).run(None)
            finally:
                session.close()
        rows = [json.loads(row) for row in (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()]
    rate, nbytes = result["steps_per_second"], result["edges"]["learner.replay.sample"]["bytes"] / result["updates"]
    inserted = result["edges"]["actor.replay.insert"]["calls"] * STEPS * ENVS / result["wall_seconds"]
    full = [row["replay/fill"] for row in rows if "replay/fill" in row][-1]
    print(
        f"across processes ({actors} actors, {shards} shards): {rate:.1f} batches of {BATCH} a second, "
        f"{rate * nbytes / 1e6:,.0f} MB/s out, {inserted:,.0f} transitions/s in, replay {100 * full:.0f}% full"
    )


async def _skip(self: Checkpointer, seconds: float = 0.0) -> bool:
    """Save nothing."""
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000, help="transitions in process")
    parser.add_argument("--frames", type=int, default=100_000, help="transitions of Atari frames")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--batches", type=int, default=400, help="across processes")
    parser.add_argument("--only", choices=["process", "memory", "across"], help="run one part only")
    args = parser.parse_args()
    print(f"{available_cores()} cores, load {os.getloadavg()[0]:.1f}")
    if args.only in (None, "memory"):
        memory("CartPole", CARTPOLE, args.items, 200)
        memory("Atari", ATARI, args.frames, 1000)
    if args.only in (None, "process"):
        asyncio.run(ours(args.items))
        torchrl(args.items)
    if args.only in (None, "across"):
        across(args.frames, args.actors, args.shards, args.batches)


if __name__ == "__main__":
    main()
