"""Settings of the scaling benchmark, whose environments only wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from thespis.core.config import Experiment
from thespis.envs.toys import Sleep
from thespis.training.registry import defaults

STEP_SECONDS = 0.01
SELDOM: dict[str, Any] = {  # only training, and time for 128 processes to start on a few cores
    "envs_per_actor": 1,
    "eval_episodes": 0,
    "total_steps": 100_000_000,
    "checkpoint_every": 1e6,
    "stall_timeout": 900.0,
}


def waiting() -> Sleep:
    return Sleep(STEP_SECONDS)


def instant() -> Sleep:
    """An environment for the simulation, whose cost model adds the waiting time."""
    return Sleep(0.0)


def impala(actors: int) -> dict[str, Any]:
    """About two updates in the time of an unroll; a batch has at most 32 unrolls, as in the paper."""
    batch = min(32, max(1, actors // 2))
    return {"unroll_length": 20, "batch_unrolls": batch, "queue_capacity": 2 * batch}


def apex(actors: int) -> dict[str, Any]:
    """The paper's samples per insert. With more, the learner would be the bottleneck on a network this small."""
    replay = {"samples_per_insert": 1.3, "warm_up": 200}
    return {"unroll_length": 20, "batch": 128, "batches_per_draw": 1, "replay": replay}


def a3c(actors: int) -> dict[str, Any]:
    return {"unroll_length": 20}


SETTINGS: dict[str, Callable[[int], dict[str, Any]]] = {"impala": impala, "apex": apex, "a3c": a3c, "seed": impala}


def configure(name: str, actors: int, env: Callable[..., Any], directory: str, **more: Any) -> Experiment:
    run_dir = Path(directory) / "run"
    return defaults(
        name, None, {**SELDOM, **SETTINGS[name](actors), "actors": actors, "env": env, "run_dir": run_dir, **more}
    )
