"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning without an actor, by workers that only label.

actor xN --unroll--> replay, demonstrations --transitions--> updater xU --labels--> buffer --examples--> trainer xT
trainer xT --gradients--> server xS --averages--> actor xN, updater xU
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.algorithms.base import chosen
from thespis.algorithms.qtopt import QTOpt
from thespis.architectures.builders import add_replay, validate_replay
from thespis.architectures.demonstrations import build_demonstrations, validate_demonstrations
from thespis.architectures.labelling import build_trainer, build_updater, build_waiting_actor
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
    """QT-Opt. The defaults are for small control tasks; the paper's own are told with each setting."""

    PATHS: ClassVar[tuple[str, ...]] = ("demos",)

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that makes one."""
    actors: int = 1
    """How many actors step environments: the paper's robots (7 there)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side; one search serves all of them."""
    updaters: RoleCount = 1
    """Bellman updaters, which label transitions with targets (paper: about 1,000)."""
    trainers: RoleCount = 1
    """Trainers, which make gradients of labelled examples (paper: 10)."""
    shards: ShardCount = 1
    """Servers the parameters are divided among, each with its own optimiser state, averages and version."""
    decay: Decay = 0.995
    """Decay of the average of the parameters, with which actors act and labels are made (paper: 0.9999)."""
    lag: Count = 200
    """Updates between copies of that average to the second lagged network (paper: about 6,000)."""
    pull_every: Count = 8
    """Batches that an updater labels between two pulls of the lagged networks."""
    buffer: Count = 8
    """Labelled batches that may wait for trainers: labels get no older than these, updaters wait rather."""
    demos: Spec = ""
    """Offline data: a directory of `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: Count = 1_000
    """Most episodes to take of it; a scripted policy plays that many."""
    offline_updates: CountOrZero = 0
    """Updates from offline data alone before any actor steps: the paper's first phase."""
    online_share: Annotated[float, Bounds(above=0, most=1)] = 0.5
    """Chance of each example after that to come from the actors, if there is offline data (paper: up to 0.5)."""
    algorithm: QTOpt = chosen(QTOpt)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offline_updates and not self.demos:
            raise ThespisError("--offline-updates are made of offline data: give --demos")


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse what cannot be stored or read, before anything starts."""
    validate_replay(cfg, spaces)
    if cfg.demos:
        validate_demonstrations(cfg)


def program(cfg: Config) -> Program:
    p = Program("qtopt")
    alone, server = p.at(restarts=3), roles.AveragingServer
    rule: dict[str, Any] = {"optimizer": cfg.algorithm.optimizer, "budget": cfg.budget}
    handles = [alone.add("server", server, **rule, decay=cfg.decay, lag=cfg.lag) for _ in range(cfg.shards)]
    servers, lagged = Servers(handles), tuple(each.edge(server.lagged) for each in handles)
    replay, storage = add_replay(p, cfg), p.at(process="storage", colocate="learner", restarts=3)
    shown = None
    if cfg.demos:
        demos = storage.add("demonstrations", build_demonstrations, cfg)
        shown = demos.edge(roles.Demonstrations.sample)
    buffer = storage.add("buffer", roles.TrainBuffer.queue, capacity=cfg.buffer)
    for _ in range(cfg.updaters):
        alone.add(
            "updater",
            build_updater,
            cfg,
            # With demonstrations the share of a replay is drawn, and may be all.
            samples=replay.sampled_by(1) if cfg.demos else replay.samples,
            sample_demos=shown,
            insert=buffer.edge(roles.TrainBuffer.insert),
            pulls=servers.pulls,
            lagged=lagged,
        )
    sample = buffer.edge(roles.TrainBuffer.sample)
    for _ in range(cfg.trainers):
        alone.add("trainer", build_trainer, cfg, sample=sample, joins=servers.joins, pushes=servers.pushes)
    actors, after = p.at(restarts=3, counts_as_actor=True), handles[0].edge(server.after)
    for index in range(cfg.actors):
        actors.add("actor", build_waiting_actor, cfg, insert=replay.insert(index), after=after, pulls=servers.pulls)
    add_sharded_evaluator(p, cfg, servers.pulls)
    return p
