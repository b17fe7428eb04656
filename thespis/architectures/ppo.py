"""PPO (Schulman et al., 2017, arXiv:1707.06347): all actors act on one weight version; the learner runs several epochs.

actor xN --unroll--> queue --N of one version--> learner --weights--> store --next version--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.ppo import PPO
from thespis.architectures.builders import (
    add_evaluator,
    add_weights,
    build_local_policy,
    build_rounds_learner,
    build_unroll_actor,
)
from thespis.core.bounds import CountOrZero
from thespis.core.config import Experiment, Rounds
from thespis.core.errors import ThespisError
from thespis.core.program import Program

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Insert, Next


@dataclass(frozen=True)
class Config(Experiment):
    """PPO, also for TRPO. The defaults suit small control tasks; Atari ids use the settings of the paper's table 5."""

    actors: int = 2
    """Number of actor processes that step environments, all on the same weight version."""
    envs_per_actor: int = 8
    """Environments per actor; the actor steps them as one batch."""
    backups: CountOrZero = 0
    """Backup actors: each update drops the unrolls of the N slowest actors."""
    algorithm: Algorithm[Rounds] = chosen(PPO)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backups >= self.actors:
            raise ThespisError(
                f"--backups is {self.backups} of {self.actors} actors; an update must wait for at least one of them"
            )
        self.algorithm.check_batch(self.quorum * self.envs_per_actor)

    @property
    def quorum(self) -> int:
        """Number of unrolls per update."""
        return self.actors - self.backups


def build_actor(ctx: Context, cfg: Config, insert: Insert, following: Next) -> roles.Actor:
    """An actor that collects one unroll per weight version. `following` waits for the next version."""
    return build_unroll_actor(ctx, cfg, insert, build_local_policy(ctx, cfg, following))


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("ppo")
    # Queue, store and learner share a process, so that they fail together. If the queue alone died with an unroll,
    # its actor would wait for a version that the learner cannot compute without this unroll.
    with_learner = p.at(process="learner", colocate="learner", restarts=3)
    queue = with_learner.add("queue", roles.Queue, capacity=cfg.actors)
    weights = add_weights(with_learner)
    sample = queue.edge(roles.Queue.sample, items=cfg.quorum, of_one_version=True)
    with_learner.add("learner", build_rounds_learner, cfg, sample=sample, publish=weights.publish, unrolls=cfg.quorum)
    actors = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        actors.add("actor", build_actor, cfg, insert=queue.edge(roles.Queue.insert), following=weights.following)
    add_evaluator(p, cfg, weights.pull)
    return p
