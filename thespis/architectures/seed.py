"""SEED RL (Espeholt et al., 2020, arXiv:1910.06591): actors only step environments; one process acts, keeps and learns.

actor xN --what came of it--> inference --unroll--> queue or replay --batch--> learner
actor xN <-----actions------- inference <--weights, within the process-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from thespis import roles
from thespis.architectures import impala, ppo, r2d2
from thespis.architectures.evaluating import add_evaluator
from thespis.architectures.serving import Served, door, line, refuse_transport
from thespis.errors import ThespisError
from thespis.experience.limiters import SamplesPerInsert
from thespis.program import Edge, Handle, Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(impala.Config, Served):
    """SEED RL with V-trace. Settings are those of IMPALA, and what concerns inference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_inference()


@dataclass(frozen=True)
class ReplayedConfig(r2d2.Config, Served):
    """SEED RL with R2D2. Settings are those of R2D2, and what concerns inference."""

    algorithm: Literal["vtrace", "r2d2", "ppo"] = "r2d2"
    """vtrace learns as IMPALA does, r2d2 from a replay, ppo in rounds of one version; each has its own settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_inference()


@dataclass(frozen=True)
class RoundsConfig(ppo.Config, Served):
    """SEED RL with PPO. Settings are those of PPO, and what concerns inference."""

    algorithm: Literal["vtrace", "r2d2", "ppo"] = "ppo"
    """vtrace learns as IMPALA does, r2d2 from a replay, ppo in rounds of one version; each has its own settings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_inference()
        if self.backups:
            raise ThespisError("weights change for all actors at once here, so --backups must stay 0")

    @property
    def quorum(self) -> int:
        """Unrolls per update: one of each group of environments."""
        return self.actors * self.groups


Configured = Config | ReplayedConfig | RoundsConfig


PRESETS = impala.PRESETS
ALGORITHMS: dict[str, tuple[type[Served], dict[str, dict[str, Any]]]] = {
    "vtrace": (Config, PRESETS),
    "r2d2": (ReplayedConfig, r2d2.PRESETS),
    "ppo": (RoundsConfig, ppo.PRESETS),
}


def refuse(cfg: Configured, spaces: Spaces) -> None:
    """Say no to what cannot be learned or stored, before anything starts."""
    if isinstance(cfg, ReplayedConfig):
        r2d2.refuse(cfg, spaces)
        if cfg.replay.shards != 1:
            raise ThespisError("here the replay is in the process that acts and learns: --replay.shards must stay 1")
    refuse_transport(cfg)


def build_actor(ctx: Context, cfg: Served, act: Any) -> roles.Actor:
    """Environments and a line to the server: no network, so no torch in this process."""
    from thespis.config import resolve
    from thespis.envs.make import make

    size = cfg.envs_per_actor // cfg.groups

    def group(start: int) -> Any:
        locate = ctx.locate
        return make(resolve(cfg.env), size, on_env=lambda env, episode, step: locate(start + env, episode, step))

    groups = [group(number * size) for number in range(cfg.groups)]
    policy = roles.RemotePolicy(ctx, line(ctx, cfg, act, groups[0]))
    return roles.Actor(ctx, groups, policy, None, 0, writer=policy)


def build_inference(ctx: Context, cfg: Configured, following: Any, insert: Any) -> roles.InferenceServer:
    from thespis.architectures.parts import serving_seats, stepper

    acting = stepper(ctx, cfg)
    replayed = isinstance(cfg, ReplayedConfig)
    normalize = cfg.discount if cfg.reward.normalize else None

    def ladder(told: Any) -> Any:
        _, actor = told.stream.who
        return cfg.ladder(actor)[told.start : told.start + len(told.flags)]  # type: ignore[union-attr]

    return roles.InferenceServer(
        ctx,
        acting,
        serving_seats(cfg, acting, cfg.unroll_length, normalize),
        following,
        insert if replayed else lambda stream, unroll: insert(unroll),
        cfg.batch_rows,
        cfg.inference_wait,
        explore=ladder if replayed else None,
        lockstep=isinstance(cfg, RoundsConfig),
        door=door(ctx, cfg),
    )


def add_learner(p: Program, cfg: Configured, weights: Handle, home: dict[str, Any]) -> Edge:
    """The learner and what it draws from; returns the way in."""
    publish = weights.edge("publish")
    if isinstance(cfg, ReplayedConfig):
        inserted, sampled = cfg.insert_items, cfg.sample_items
        band = SamplesPerInsert.of(cfg.replay, inserted, sampled)
        replay = p.add("replay", r2d2.build_replay, cfg, capacity=cfg.replay.capacity, limiter=band, **home)
        samples = (replay.edge("sample", items=sampled),)
        prioritise = (replay.edge("prioritise"),) if cfg.replay.priority_exponent else ()
        p.add("learner", r2d2.build_learner, cfg, samples, prioritise, publish, thread=True, **home)
        return replay.edge("insert", items=inserted)
    if isinstance(cfg, RoundsConfig):
        queue = p.add("queue", roles.Replay.queue, capacity=cfg.quorum, **home)
        sample = queue.edge("sample", items=cfg.quorum)
        p.add("learner", ppo.build_learner, cfg, sample, publish, thread=True, **home)
        return queue.edge("insert")
    unrolls = cfg.batch_unrolls * cfg.groups  # an unroll is that of one group
    queue = p.add("queue", roles.Replay.queue, capacity=cfg.queue_capacity * cfg.groups, **home)
    sample = queue.edge("sample", items=unrolls)
    p.add("learner", impala.build_learner, replace(cfg, batch_unrolls=unrolls), sample, publish, thread=True, **home)
    return queue.edge("insert")


def program(cfg: Configured) -> Program:
    p = Program("seed")
    cfg = replace(cfg, **cfg.absolute())
    home: dict[str, Any] = {"process": "hub", "near": "learner", "restarts": 3}
    weights = p.add("weights", roles.WeightStore, hold_back=getattr(cfg, "forced_lag", 0), **home)
    insert = add_learner(p, cfg, weights, home)
    inference = p.add("inference", build_inference, cfg, weights.edge("next"), insert, **home)
    act = inference.edge("act")
    for _ in range(cfg.actors):
        p.add("actor", build_actor, cfg, act, actor=True, restarts=3)
    add_evaluator(p, cfg, weights)
    return p
