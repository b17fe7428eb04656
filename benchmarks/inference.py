"""Measures the round trip of an inference request from one actor, next to a bare echo over a Unix socket.

python benchmarks/inference.py
python benchmarks/inference.py --rows 1 8 64 256 --calls 5000
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from thespis.algorithms.vtrace import VTrace
from thespis.core.config import Experiment
from thespis.core.context import Context
from thespis.core.program import Program
from thespis.core.types import Inputs, Stream, Version, VersionedWeights

OBSERVATION = 4
ROWS = (1, 8, 64)
ENOUGH = 10**12
"""Step limit. The actor reports this many steps once it has sent all requests, which ends the run."""
WAYS = {"shared memory": "shm", "runtime's edge": None, "gRPC, Unix socket": "unix", "gRPC, TCP loopback": "tcp"}


def inputs(rows: int) -> Inputs:
    obs = np.zeros((rows, OBSERVATION), np.float32)
    return Inputs(obs, np.zeros(rows, np.bool_), np.zeros(rows, np.int64), np.zeros(rows, np.float32))


def summarise(seconds: list[float]) -> dict[str, float]:
    """Return statistics in microseconds, without the first tenth of the calls."""
    steady = np.array(seconds[len(seconds) // 10 :]) * 1e6
    return {"p50": float(np.percentile(steady, 50)), "p99": float(np.percentile(steady, 99)), "mean": steady.mean()}


def timed(call: Callable[[], Any], calls: int) -> dict[str, float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return summarise(seconds)


def bare_echo(rows: int, calls: int) -> dict[str, float]:
    """Measure an echo between two blocking processes, with as many bytes as the arrays of a request."""
    payload = bytes(rows * (4 * OBSERVATION + 4 + 1))
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        while data := theirs.recv(1 << 16):
            theirs.sendall(data)
        os._exit(0)
    theirs.close()

    def echo() -> None:
        ours.sendall(payload)
        left = len(payload)
        while left:
            left -= len(ours.recv(1 << 16))

    result = timed(echo, calls)
    ours.close()
    os.waitpid(child, 0)
    return result


def spaces() -> Any:
    from gymnasium.spaces import Box, Discrete

    from thespis.envs.spaces import Spaces

    return Spaces(Box(-1.0, 1.0, (OBSERVATION,), np.float32), Discrete(2))


def policy_runner(rng: np.random.Generator) -> Any:
    algorithm = VTrace()
    return algorithm.build_policy_runner(algorithm.build_network(spaces(), seed=0), rng)


def layout(rows: tuple[int, ...]) -> Any:
    from thespis.transport.inference_schema import InferenceSchema

    made = spaces()
    return InferenceSchema.of(made.observation_space, made.action_space, sum(rows))


def forward(rows: int, calls: int) -> dict[str, float]:
    """Measure the forward pass alone."""
    runner, given = policy_runner(np.random.default_rng(0)), inputs(rows)
    return timed(lambda: runner.act(given, ()), calls)


class ConstantWeights:
    """An edge to weights that never change."""

    name = "inference.weights.next"

    def __init__(self, runner: Any) -> None:
        from thespis.networks.policy_runner import export_weights

        self._weights = export_weights(runner.network)

    async def __call__(self, newer_than: Version | None) -> VersionedWeights:
        import asyncio

        if newer_than is not None:
            await asyncio.Event().wait()
        return VersionedWeights(Version(0, 0), self._weights)


def build_server(ctx: Context, way: str | None, rows: tuple[int, ...]) -> Any:
    from thespis.experience.trajectory_assembler import TrajectoryAssembler
    from thespis.roles import Batching, InferenceServer

    async def discard(stream: Stream, unroll: Any) -> None:
        """Discard an unroll. The server assembles unrolls as in a run, but this benchmark does not use them."""

    runner = policy_runner(ctx.rng("policy"))
    slots = TrajectoryAssembler(16, runner.initial_state, np.zeros((), np.int64))
    listener: Any = None
    if way == "shm":
        from thespis.transport.shm_server import ShmInferenceServer

        listener = ShmInferenceServer(layout(rows))
    elif way is not None:
        from thespis.transport.grpc_server import GrpcInferenceServer

        listener = GrpcInferenceServer(layout(rows), "127.0.0.1" if way == "tcp" else None)
    return InferenceServer(ctx, runner, slots, ConstantWeights(runner), discard, Batching(1, 0.0), listener=listener)


class Requester:
    """Sends requests as an actor does whose environments take no time."""

    def __init__(
        self, ctx: Context, act: Any, way: str | None, rows: tuple[int, ...], calls: int, results: str
    ) -> None:
        self._ctx, self._act, self._rows, self._calls, self._results = ctx, act, rows, calls, results
        if way == "shm":
            from thespis.transport.shm_client import ShmInferenceClient

            self._act = ShmInferenceClient(ctx, act.sibling("open_session"), layout(rows))
        elif way is not None:
            from thespis.transport.grpc_client import GrpcInferenceClient

            self._act = GrpcInferenceClient(ctx, act.sibling("open_session"), layout(rows))

    async def run(self) -> None:
        from thespis.envs.autoreset import EnvStep
        from thespis.roles import RemotePolicy

        found = {}
        policy = RemotePolicy(self._ctx, self._act)
        for rows in self._rows:
            state, given = policy.initial_state(rows), inputs(rows)
            none, all_ = np.zeros(rows, np.bool_), np.ones(rows, np.bool_)
            step = EnvStep(given.obs, given.last_reward, none, none, all_, none, None, [], mid_episode=True)
            seconds = []
            for _ in range(self._calls):
                started = time.perf_counter()
                acted = await policy.act(given, state)
                seconds.append(time.perf_counter() - started)
                policy.write(acted, policy.version, step, given)
            found[rows] = summarise(seconds)
        Path(self._results).write_text(json.dumps(found))
        self._ctx.count("env_steps", ENOUGH)
        await self._ctx.sleep(3600.0)


def served(rows: tuple[int, ...], calls: int, way: str | None) -> dict[int, dict[str, float]]:
    """Measure requests of a run: actor, channel, server, policy, and back."""
    from thespis.roles import InferenceServer
    from thespis.runs.directory import RunDirectory
    from thespis.runs.terminal.screen import Screen
    from thespis.runtime.local import LocalSupervisor
    from thespis.runtime.session import Session

    build_server.__annotations__["return"] = InferenceServer
    with tempfile.TemporaryDirectory() as directory:
        results = Path(directory) / "results.json"
        program = Program("inference")
        server = program.at().add("inference", build_server, way, rows)
        program.at().add("actor", Requester, server.edge("act"), way, rows, calls, str(results))
        program.check()
        run = RunDirectory.create("inference", "none", 0, Path(directory) / "run")
        session = Session(Experiment(total_steps=ENOUGH), program, run, Screen(quiet=True))
        LocalSupervisor(program, session).run(None)
        session.close()
        if session.error:
            raise SystemExit(session.error)
        return {int(name): values for name, values in json.loads(results.read_text()).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--calls", type=int, default=3000)
    args = parser.parse_args()
    rows = tuple(args.rows)
    table: dict[str, dict[int, dict[str, float]]] = {
        "bare Unix-socket echo": {number: bare_echo(number, args.calls) for number in rows},
        "forward pass alone": {number: forward(number, args.calls) for number in rows},
        **{name: served(rows, args.calls, way) for name, way in WAYS.items()},
    }
    print(f"{'':24}{'rows':>6}{'trips/s':>10}{'p50 us':>9}{'p99 us':>9}")
    for name, found in table.items():
        for number, values in found.items():
            print(f"{name:24}{number:6}{1e6 / values['mean']:10,.0f}{values['p50']:9.1f}{values['p99']:9.1f}")


if __name__ == "__main__":
    main()
