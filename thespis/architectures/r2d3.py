"""R2D3 (Paine et al., 2019, arXiv:1909.01387): R2D2 and a second replay, of demonstrations; each batch has a few.

actor xN --unroll, state--> replay --sequences by priority--> learner --weights--> store --pull--> actor xN
                    demonstrations --sequences by priority--> learner
            replay, demonstrations <-------priorities-------- learner
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from thespis import roles
from thespis.algorithms.base import Algorithm, chosen
from thespis.algorithms.r2d2 import R2D2, Sequences
from thespis.architectures.builders import (
    add_evaluator,
    add_replay,
    build_replay_actor,
    central_learner,
    learner_network,
    validate_replay,
)
from thespis.architectures.demonstrations import build_demonstrations, validate_demonstrations
from thespis.core.bounds import Bounds, Count
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.user_code import Spec

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import Draw, Prioritise, Publish
    from thespis.envs.spaces import Spaces


@dataclass(frozen=True)
class Config(Experiment):
    """R2D3. The defaults are those of R2D2; demonstrations have to be given."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("publish_every",)
    PATHS: ClassVar[tuple[str, ...]] = ("demos",)

    actors: int = 2
    """How many actors step environments (paper: 256)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with an epsilon of its own (paper: 1)."""
    publish_every: Count = 4
    """Updates between weights that actors can see."""
    demos: Spec = ""
    """Demonstrations: a directory of `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: Count = 100
    """Most episodes to take of them; a scripted policy plays that many (paper: 100)."""
    demo_ratio: Annotated[float, Bounds(least=0, below=1)] = 1 / 16
    """Chance of each sequence of a batch to be a demonstration (paper: 1/256 was best, with 256 actors). With
    1 nothing of the actors' would be sampled, and they would wait for ever."""
    algorithm: Algorithm[Sequences] = chosen(R2D2)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse what cannot be stored or imitated, before anything starts."""
    validate_replay(cfg, spaces)
    if not cfg.demos:
        raise ThespisError(
            "r2d3 learns from demonstrations: give --demos with a directory that `thespis record` wrote, "
            "minari:NAME, or a scripted policy as file.py::function"
        )
    validate_demonstrations(cfg)


def build_learner(
    ctx: Context,
    cfg: Config,
    samples: Sequence[Draw],
    prioritise: Sequence[Prioritise],
    sample_demos: Draw,
    prioritise_demos: Prioritise | None,
    publish: Publish,
) -> roles.Learner:
    from thespis.experience.mixing import Mixed, Origin

    network, items = learner_network(ctx, cfg), cfg.algorithm.items
    lived = (1.0 - cfg.demo_ratio) / len(samples)
    shards = [Origin(lived, *edges) for edges in zip_longest(samples, prioritise)]
    shown = Origin(cfg.demo_ratio, sample_demos, prioritise_demos)

    def initial_state(number: int) -> Any:
        """The state of sequences whose actor sent none."""
        return tuple(part.numpy() for part in network.initial_state(number))

    source = Mixed(ctx, [*shards, shown], items.batch, items.batches_per_draw, initial_state)
    return central_learner(ctx, cfg, source, network, publish, cfg.publish_every)


def program(cfg: Config) -> Program:
    p = Program("r2d3")
    replay = add_replay(p, cfg)
    storage = p.at(process="storage", colocate="learner", restarts=3)
    weights = storage.add("weights", roles.WeightStore)
    demos = storage.add("demonstrations", build_demonstrations, cfg)
    publish, pull = weights.edge(roles.WeightStore.publish), weights.edge(roles.WeightStore.pull)
    p.at(colocate="learner", restarts=3).add(
        "learner",
        build_learner,
        cfg,
        samples=replay.samples,
        prioritise=replay.priorities,
        sample_demos=demos.edge(roles.Demonstrations.sample),
        prioritise_demos=demos.edge(roles.Demonstrations.prioritise) if replay.priorities else None,
        publish=publish,
    )
    actors = p.at(restarts=3, counts_as_actor=True)
    for index in range(cfg.actors):
        actors.add("actor", build_replay_actor, cfg, insert=replay.insert(index), pull=pull)
    add_evaluator(p, cfg, pull)
    return p
