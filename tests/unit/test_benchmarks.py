"""Benchmarks that call parts of the package directly: each of them measures something with small settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import FakeContext, FakeEdge, play

from benchmarks import inference, replay, roofline
from thespis.core.context import Identity
from thespis.core.types import Stream
from thespis.training.registry import defaults


def test_roofline_measures_every_part(monkeypatch: pytest.MonkeyPatch) -> None:

    def once(work: Callable[[], Any], budget: float) -> float:
        work()
        return 1.0

    monkeypatch.setattr(roofline, "seconds_per_call", once)
    cfg: Any = defaults("impala", "CartPole-v1", {"envs_per_actor": 2, "unroll_length": 4})
    costs = roofline.Parts(cfg).costs(0.0)
    assert costs.keys() == {"environment", "inference", "learning"} and min(costs.values()) > 0


def test_the_forward_pass_alone_has_percentiles() -> None:
    assert inference.forward(2, 20)["p50"] > 0


@pytest.mark.parametrize("channel", ["runtime's edge", "shared memory"])
def test_requests_of_a_run_are_measured(channel: str) -> None:
    assert inference.served((1,), 20, inference.WAYS[channel])[1]["p99"] > 0


def test_the_reader_samples_batches_and_sends_priorities_back() -> None:
    table = replay.replay(
        replay.StandaloneContext(Identity("replay", 0, run_seed=0)), replay.CARTPOLE, 2_000, replay.FREE
    )
    sent = asyncio.Event()

    async def prioritise(keys: Any, priorities: Any) -> None:
        assert keys.shape == priorities.shape == (replay.BATCH,) and np.isfinite(priorities).all()
        sent.set()

    async def scene() -> None:
        for _ in range(4):
            await table.insert(Stream(("actor", 0), 1), replay.unroll(replay.CARTPOLE, 200))
        ctx = FakeContext(Identity("learner", 0, run_seed=0))
        reader = replay.SampleReader(ctx, (FakeEdge(table.sample),), (FakeEdge(prioritise),))
        running = asyncio.ensure_future(reader.run())
        await sent.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await reader.close()

    play(scene())
