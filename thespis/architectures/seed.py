"""SEED RL (Espeholt et al., 2020, arXiv:1910.06591): actors only step environments; one process acts, keeps and learns.

actor xN --what came of it--> inference --unroll--> queue or replay --batch--> learner
actor xN <-----actions------- inference <--weights, within the process-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.r2d2 import Sequences
from thespis.algorithms.vtrace import VTrace
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    build_inference,
    build_queue_learner,
    build_remote_actor,
    build_replay_learner,
    build_rounds_learner,
    refuse_shards,
    validate_replay,
    validate_transport,
)
from thespis.core.bounds import Count, CountOrZero
from thespis.core.config import Experiment, InferenceConfig, Rounds, Unrolls
from thespis.core.errors import ThespisError
from thespis.core.program import Placement, Program
from thespis.core.settings import inline

if TYPE_CHECKING:
    from thespis.core.edges import Publish
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """SEED RL: V-trace from a queue, R2D2 from a replay, PPO in rounds of one version; each has its own settings."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)

    algorithm: Algorithm[Unrolls | Rounds | Sequences] = chosen(VTrace)
    inference: InferenceConfig = inline(InferenceConfig)
    batch_unrolls: Count = 1
    """Unrolls of a queue per update; each holds all environments of one actor."""
    queue_capacity: Count = 1
    """Unrolls that may wait in a queue for the learner; small, because waiting is lag."""
    forced_lag: CountOrZero = 0
    """Act on weights that are this many updates old, to study lag; for unrolls of a queue."""
    publish_every: Count = 1
    """Updates between weights that are acted on; rounds of one version need every one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inference.check(self)
        self.algorithm.check_batch(self.actors * self.envs_per_actor)
        queued = (self.batch_unrolls, self.queue_capacity, self.forced_lag) != (1, 1, 0)
        if queued and self.kind != Unrolls.KIND:
            raise ThespisError(
                f"{self.algorithm.name} has no queue of unrolls; leave off --batch-unrolls, --queue-capacity and "
                "--forced-lag"
            )
        if self.publish_every != 1 and self.kind == Rounds.KIND:
            raise ThespisError("every round waits for the next version, so --publish-every must stay 1")

    @property
    def kind(self) -> str:
        return str(self.algorithm.items.KIND)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse what cannot be stored or served, before anything starts."""
    if cfg.kind == Sequences.KIND:
        validate_replay(cfg, spaces)
        refuse_shards(cfg, "here the replay is in the process that acts and learns")
    validate_transport(cfg.inference)


def add_learner(p: Program, cfg: Config, home: Placement, publish: Publish) -> dict[str, Any]:
    """The learner and the storage it draws from; returns the edge that inserts there, as `build_inference` takes it."""
    threaded, every = replace(home, thread=True), cfg.publish_every
    if cfg.kind == Sequences.KIND:
        replay = add_replay(p, cfg, home)
        draws: Any = {"samples": replay.samples, "prioritise": replay.priorities}
        threaded.add("learner", build_replay_learner, cfg, **draws, publish=publish, publish_every=every)
        return {"insert_stream": replay.insert(0)}
    groups, rounds = cfg.inference.groups, cfg.kind == Rounds.KIND  # an unroll is that of one group
    unrolls = groups * (cfg.actors if rounds else cfg.batch_unrolls)
    queue = home.add("queue", roles.Replay.queue, capacity=unrolls if rounds else cfg.queue_capacity * groups)
    sample = queue.edge(roles.Replay.sample, items=unrolls)
    if rounds:
        threaded.add("learner", build_rounds_learner, cfg, sample=sample, publish=publish, unrolls=unrolls)
    else:
        edges: Any = {"sample": sample, "publish": publish}
        threaded.add("learner", build_queue_learner, cfg, **edges, unrolls=unrolls, publish_every=every)
    return {"insert": queue.edge(roles.Replay.insert), "lockstep": rounds}


def program(cfg: Config) -> Program:
    p = Program("seed")
    cfg = replace(cfg, inference=cfg.inference.absolute())
    home = p.at(process="learner", colocate="learner", restarts=3)
    weights = home.add("weights", roles.WeightStore, hold_back=cfg.forced_lag)
    inserts = add_learner(p, cfg, home, weights.edge(roles.WeightStore.publish))
    following = weights.edge(roles.WeightStore.next)
    inference = home.add("inference", build_inference, cfg, cfg.inference, following=following, **inserts)
    actors = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        actors.add("actor", build_remote_actor, cfg, cfg.inference, act=inference.edge(roles.InferenceServer.act))
    add_evaluator(p, cfg, weights.edge(roles.WeightStore.pull))
    return p
