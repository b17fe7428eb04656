"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning by regression; separate workers compute targets.

actor xN --unroll--> replay, demonstrations --transitions--> updater xU --labels--> buffer --examples--> trainer xT
trainer xT --gradients--> server xS --averages--> actor xN, updater xU
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.qtopt import QTOpt
from thespis.architectures.builders import add_demonstrations, add_replay, validate_demonstrations, validate_replay
from thespis.architectures.parts.labelling import build_trainer, build_updater, build_waiting_actor
from thespis.architectures.sharding import Servers, add_sharded_evaluator
from thespis.core.bounds import Bounds, Count, CountOrZero, Decay, RoleCount, ShardCount
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.user_code import Spec

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """QT-Opt. The defaults suit small control tasks; the help of each setting names the paper's value."""

    PATHS: ClassVar[tuple[str, ...]] = ("demos",)

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that builds one."""
    actors: int = 1
    """Number of actor processes that step environments (paper: 7 robots)."""
    envs_per_actor: int = 4
    """Environments per actor; one action search serves all of them."""
    updaters: RoleCount = 1
    """Number of Bellman updaters, which compute targets of transitions (paper: about 1,000)."""
    trainers: RoleCount = 1
    """Number of trainers, which compute gradients from labelled examples (paper: 10)."""
    shards: ShardCount = 1
    """Number of parameter servers; each holds a slice of the parameters, optimiser state and averages."""
    decay: Decay = 0.995
    """Decay rate of the averaged parameters, which actors and Bellman updaters use (paper: 0.9999)."""
    lag: Count = 200
    """Copy the averaged parameters to the second lagged network every N updates (paper: about 6,000)."""
    pull_every: Count = 8
    """Pull the lagged networks every N labelled batches, in each Bellman updater."""
    buffer: Count = 8
    """Capacity of the train buffer in labelled batches. A full buffer blocks the Bellman updaters, which bounds the
    age of targets."""
    demos: Spec = ""
    """Offline data: a directory written by `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: Count = 1_000
    """Maximum number of episodes of offline data; a scripted policy plays exactly this many."""
    offline_updates: CountOrZero = 0
    """Number of updates from offline data alone before the actors start (the paper's first phase)."""
    online_share: Annotated[float, Bounds(above=0, most=1)] = 0.5
    """Fraction of the actors' examples in a batch after the offline phase, if --demos is given (paper: up to 0.5)."""
    algorithm: QTOpt = chosen(QTOpt)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offline_updates and not self.demos:
            raise ThespisError("--offline-updates needs offline data: give --demos")


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a replay that cannot work and demonstrations that cannot be read."""
    validate_replay(cfg, spaces)
    if cfg.demos:
        validate_demonstrations(cfg)


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("qtopt")
    separate, server = p.at(restarts=3), roles.AveragingServer
    rule: dict[str, Any] = {"optimizer": cfg.algorithm.optimizer, "budget": cfg.budget}
    handles = [separate.add("server", server, **rule, decay=cfg.decay, lag=cfg.lag) for _ in range(cfg.shards)]
    servers, lagged = Servers.of(handles), tuple(each.edge(server.lagged) for each in handles)
    replay, storage = add_replay(p, cfg), p.at(process="storage", colocate="learner", restarts=3)
    sample_demos = add_demonstrations(storage, cfg).sample if cfg.demos else None
    buffer = storage.add("buffer", roles.TrainBuffer, capacity=cfg.buffer)
    for _ in range(cfg.updaters):
        separate.add(
            "updater",
            build_updater,
            cfg,
            # With demonstrations the number of items from each replay is random, up to a whole batch.
            samples=replay.sampled_by(1) if cfg.demos else replay.samples,
            sample_demos=sample_demos,
            insert=buffer.edge(roles.TrainBuffer.insert),
            pulls=servers.pulls,
            lagged=lagged,
        )
    sample = buffer.edge(roles.TrainBuffer.sample)
    for _ in range(cfg.trainers):
        separate.add("trainer", build_trainer, cfg, sample=sample, servers=servers.edges)
    actors, after = p.at(restarts=3, counts_as_actor=True), handles[0].edge(server.after)
    for index in range(cfg.actors):
        actors.add("actor", build_waiting_actor, cfg, insert=replay.insert(index), after=after, pulls=servers.pulls)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
