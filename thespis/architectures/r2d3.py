"""R2D3 (Paine et al., 2019, arXiv:1909.01387): R2D2 with a second replay buffer, which holds demonstrations.

actor xN --unroll, state--> replay --sequences by priority--> learner --weights--> store --pull--> actor xN
                    demonstrations --sequences by priority--> learner
            replay, demonstrations <-------priorities-------- learner
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.base import Algorithm
from thespis.algorithms.r2d2 import R2D2
from thespis.architectures import builders
from thespis.architectures.parts.learners import build_central_learner, build_learner_network
from thespis.core.bounds import Bounds, Count
from thespis.core.config import Experiment, Sequences
from thespis.core.errors import ThespisError
from thespis.core.learners_config import OwnReplaysConfig
from thespis.core.program import Program
from thespis.core.settings import inline
from thespis.core.user_code import Spec

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import GroupEdges, Publish, ReplayEdges
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """R2D3. The defaults are those of R2D2; --demos is required."""

    PATHS: ClassVar[tuple[str, ...]] = ("demos",)

    actors: int = 2
    """Number of actor processes that step environments (paper: 256)."""
    envs_per_actor: int = 4
    """Environments per actor; each has its own epsilon (paper: 1)."""
    demos: Spec = ""
    """Demonstrations: a directory written by `thespis record`, minari:NAME, or a scripted policy
    (file.py::function)."""
    demo_episodes: Count = 100
    """Maximum number of demonstration episodes; a scripted policy plays exactly this many (paper: 100)."""
    demo_ratio: Annotated[float, Bounds(least=0, below=1)] = 1 / 16
    """Demo ratio: probability that a sequence of a batch is a demonstration (paper: 1/256 was best, with 256 actors).
    It must be below 1, because the actors would otherwise wait forever."""
    group: OwnReplaysConfig = inline(OwnReplaysConfig)
    algorithm: Algorithm[Sequences] = chosen(R2D2)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.group.check(self)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a replay that cannot work and missing or unreadable demonstrations."""
    builders.validate_replay(cfg, spaces)
    if not cfg.demos:
        raise ThespisError(
            "r2d3 learns from demonstrations: give --demos with a directory that `thespis record` wrote, "
            "minari:NAME, or a scripted policy as file.py::function"
        )
    builders.validate_demonstrations(cfg)


def build_learner(
    ctx: Context,
    cfg: Config,
    replay: Sequence[ReplayEdges],
    demos: ReplayEdges,
    publish: Publish,
    group: GroupEdges | None,
) -> roles.Learner:
    """A learner that mixes sequences of the replay with demonstrations."""
    from thespis.experience.mixing import MixedSource, Origin

    network, items = build_learner_network(ctx, cfg, group=group), cfg.algorithm.items
    shards = [Origin((1.0 - cfg.demo_ratio) / len(replay), *edges) for edges in replay]
    demonstrations = Origin(cfg.demo_ratio, *demos)

    def initial_state(number: int) -> Any:
        """The initial state of demonstrations, which store no recurrent state."""
        return tuple(part.numpy() for part in network.initial_state(number))

    source = MixedSource(ctx, [*shards, demonstrations], items.batch, items.batches_per_draw, initial_state)
    return build_central_learner(ctx, cfg, source, network, publish, cfg.group.publish_every, group)


def program(cfg: Config) -> Program:
    """Wire the figure above, once for each learner; each has its own replay, demonstrations and actors."""
    p = Program("r2d3")
    replays, stores = builders.add_own_replays(p, cfg), builders.add_own_weights(p, cfg)
    groups = builders.add_group(p, cfg)
    for learner, (replay, store, group) in enumerate(zip(replays, stores, groups, strict=True)):
        demos = builders.add_demonstrations(cfg.group.place(p, "storage", learner), cfg)
        place, publish = replace(cfg.group.place(p, None, learner), replicated=True), store.publish
        place.add("learner", build_learner, cfg, replay=replay.edges, demos=demos, publish=publish, group=group)
    builders.add_replay_actors(p, cfg, replays, stores)
    builders.add_evaluator(p, cfg, stores[0].pull_exact)
    return p
