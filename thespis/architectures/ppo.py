"""PPO (Schulman et al., 2017, arXiv:1707.06347): all actors act on one version, the learner takes several epochs of it.

actor xN --unroll--> queue --N of one version--> learner --weights--> store --next version--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.ppo import PPO
from thespis.architectures.builders import add_evaluator, build_rounds_learner, local_policy, unroll_actor
from thespis.core.bounds import CountOrZero
from thespis.core.config import Experiment, Rounds
from thespis.core.errors import ThespisError
from thespis.core.program import Program

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Insert, Next


@dataclass(frozen=True)
class Config(Experiment):
    """PPO. The defaults are for small control tasks; Atari ids take the settings of the paper's table 5."""

    actors: int = 2
    """How many actors step environments, all on the same version of the weights."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side."""
    backups: CountOrZero = 0
    """Actors that an update does not wait for; what the last ones bring is late and dropped."""
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
        """Unrolls per update."""
        return self.actors - self.backups


def build_actor(ctx: Context, cfg: Config, insert: Insert, following: Next) -> roles.Actor:
    """`following`: the edge to the next version, so that the actor makes one unroll of each."""
    return unroll_actor(ctx, cfg, insert, local_policy(ctx, cfg, following))


def program(cfg: Config) -> Program:
    p = Program("ppo")
    # In one process, so that they fail together: an actor that has handed its unroll over waits for a version which
    # only comes of that unroll, or of a learner that starts again.
    beside = p.at(process="learner", colocate="learner", restarts=3)
    queue = beside.add("queue", roles.Replay.queue, capacity=cfg.actors)
    weights = beside.add("weights", roles.WeightStore)
    sample = queue.edge(roles.Replay.sample, items=cfg.quorum, of_one_version=True)
    publish = weights.edge(roles.WeightStore.publish)
    beside.add("learner", build_rounds_learner, cfg, sample=sample, publish=publish, unrolls=cfg.quorum)
    actors = p.at(restarts=3, counts_as_actor=True)
    for _ in range(cfg.actors):
        insert, following = queue.edge(roles.Replay.insert), weights.edge(roles.WeightStore.next)
        actors.add("actor", build_actor, cfg, insert=insert, following=following)
    add_evaluator(p, cfg, weights.edge(roles.WeightStore.pull))
    return p
