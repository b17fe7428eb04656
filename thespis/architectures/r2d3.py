"""R2D3 (Paine et al., 2019, arXiv:1909.01387): R2D2 and a second replay, of demonstrations; each batch has a few.

actor xN --unroll, state--> replay --sequences by priority--> learner --weights--> store --pull--> actor xN
                    demonstrations --sequences by priority--> learner
            replay, demonstrations <-------priorities-------- learner
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures import apex, r2d2
from thespis.architectures.values import SERVICES, at_least_one, value_program
from thespis.config import Spec
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(r2d2.Config):
    """R2D3. The defaults are those of R2D2; demonstrations have to be given."""

    demos: Spec = ""
    """Demonstrations: a directory of `thespis record`, minari:NAME, or a scripted policy (file.py::function)."""
    demo_episodes: int = 100
    """Most episodes to take of them; a scripted policy plays that many (paper: 100)."""
    demo_ratio: float = 1 / 16
    """Chance of each sequence of a batch to be a demonstration (paper: 1/256 was best, with 256 actors)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "demo_episodes")
        if not 0.0 <= self.demo_ratio < 1.0:
            raise ThespisError(
                f"--demo-ratio is {self.demo_ratio}; give at least 0, and less than 1: with demonstrations alone "
                "nothing of the actors' would be sampled, and they would wait for ever"
            )


PRESETS: dict[str, dict[str, Any]] = {
    **r2d2.PRESETS,
    "thespis/Lock-v0": {
        **r2d2.PRESETS["thespis/Lock-v0"],
        "demos": "thespis.envs.toys::open_lock",
        "demo_episodes": 5,
        "demo_ratio": 0.25,  # few actors: what they find out is little beside what demonstrations tell
        "replay": {**r2d2.PRESETS["thespis/Lock-v0"]["replay"], "samples_per_insert": 24.0},  # as many updates as R2D2
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be learned, stored or imitated, before anything starts."""
    from thespis.experience.recording import gather

    r2d2.refuse(cfg, spaces)
    if not cfg.demos:
        raise ThespisError(
            "r2d3 learns from demonstrations: give --demos with a directory that `thespis record` wrote, "
            "minari:NAME, or a scripted policy as file.py::function"
        )
    gather(cfg.demos, cfg.env, cfg.demo_episodes, cfg.seed)


def build_demonstrations(ctx: Context, cfg: Config) -> roles.Demonstrations:
    from thespis.experience.tables import demonstration_table

    return demonstration_table(ctx, cfg)


def build_learner(
    ctx: Context, cfg: Config, samples: Any, prioritise: Any, publish: Any, sample_demos: Any, prioritise_demos: Any
) -> roles.Learner:
    from thespis.algorithms.r2d2 import R2D2Update
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.mixing import Mixed, Origin

    update = R2D2Update(learner_network(ctx, cfg), cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    lived = (1.0 - cfg.demo_ratio) / len(samples)
    shards = [Origin(lived, *edges) for edges in zip_longest(samples, prioritise)]
    shown = Origin(cfg.demo_ratio, sample_demos, prioritise_demos)
    source = Mixed(ctx, [*shards, shown], cfg.batch, cfg.batches_per_draw, update.initial_state)
    return roles.Learner(ctx, source, update, exchange, publish, cfg.budget, cfg.publish_every)


def program(cfg: Config) -> Program:
    def add_demonstrations(p: Program) -> dict[str, Any]:
        demos = p.add("demonstrations", build_demonstrations, cfg, **SERVICES)
        prioritised = cfg.replay.priority_exponent
        return {
            "sample_demos": demos.edge("sample"),
            "prioritise_demos": demos.edge("prioritise") if prioritised else None,
        }

    return value_program("r2d3", cfg, apex.build_actor, r2d2.build_replay, build_learner, add_demonstrations)
