"""R2D2 (Kapturowski et al., 2019): Ape-X with memory. Sequences start from the state their actor was in, and burn in.

actor xN --unroll, state--> replay --sequences by priority--> learner --weights--> store --pull--> actor xN
                            replay <--------priorities------- learner
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from thespis import roles
from thespis.architectures import apex
from thespis.architectures.values import value_program
from thespis.config import OptimizerConfig, QNetworkConfig, ReplayConfig
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.experience.limiters import SamplesPerInsert
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Config(apex.Config):
    """R2D2. The defaults are for small tasks; Atari ids take the paper's settings instead."""

    RECURRENT: ClassVar = True

    actors: int = 2
    """How many actors step environments (paper: 256)."""
    unroll_length: int = 10
    """Steps per unroll: an actor sends them and takes newer weights this often, and a sequence starts (paper: 40)."""
    sequence_length: int = 20
    """Steps of a sequence that are learned from (paper: 80)."""
    burn_in: int = 10
    """Steps before these that only bring the recurrent state up to date; none at an episode's start (paper: 40)."""
    state: Literal["stored", "zero"] = "stored"
    """What burn-in starts from: the state that the actor was in, or zeros."""
    batch: int = 32
    """Sequences per update (paper: 64)."""
    batches_per_draw: int = 1
    """Batches that one call to the replay brings."""
    n_step: int = 5
    """Rewards summed before bootstrapping (paper)."""
    discount: float = 0.997
    """Discount factor (paper)."""
    huber: float = float("inf")
    """TD errors beyond this pull no harder (paper: none is too large)."""
    eta: float = 0.9
    """Share of a sequence's largest TD error in its priority; the mean has the rest (paper)."""
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(
            warm_up=200,
            samples_per_insert=4.0,
            priority_exponent=0.9,
            importance_exponent=0.6,
            actor_priorities=True,
        )
    )
    network: QNetworkConfig = field(default_factory=lambda: QNetworkConfig(hidden=(64,), lstm=64, dueling=True))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(epsilon=1e-3))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in < 0 or not 0.0 <= self.eta <= 1.0:
            raise ThespisError("--burn-in cannot be negative, and --eta is a share from 0 to 1")
        if self.unroll_length + self.burn_in > self.sequence_length:
            raise ThespisError(
                f"sequences start every {self.unroll_length} steps and burn in {self.burn_in}, so with "
                f"--sequence-length {self.sequence_length} some steps would never be learned from; give it at least "
                f"{self.unroll_length + self.burn_in}, or lower --unroll-length or --burn-in"
            )
        self.check_rows(self.replay.capacity)

    def check_rows(self, rows: int) -> None:
        """Refuse a replay of so many steps if sequences could be overwritten before they are complete."""
        window = self.burn_in + self.sequence_length + 2 * self.unroll_length
        least = max(2 * self.actors * self.envs_per_actor * window, self.replay.warm_up * self.unroll_length)
        if rows < least:
            raise ThespisError(
                f"a replay of {rows} steps cannot hold the sequences that all environments have open, or the warm-up "
                f"({self.replay.warm_up} sequences); give --replay.capacity and --replay.bytes for {least} steps"
            )

    @property
    def insert_items(self) -> int:
        """The most sequences that one unroll completes: those open, and one of every episode that ends in it."""
        waiting = (self.burn_in + self.sequence_length) // self.unroll_length + 2
        return self.envs_per_actor * (self.unroll_length + waiting)


PRESETS: dict[str, dict[str, Any]] = {
    "thespis/Re*-v0": {  # Recall and Reversal: neither rewards nor actions may tell the agent what it should remember
        "total_steps": 96_000,
        "actors": 1,
        "envs_per_actor": 16,
        "unroll_length": 3,
        "sequence_length": 6,
        "burn_in": 3,
        "batch": 64,
        "discount": 0.9,  # when questions come is chance, and far ones would only be noise in the targets
        "replay": {"capacity": 8_000, "samples_per_insert": 8.0},  # young states: the network moves away from old ones
        "network": {"hidden": [32], "lstm": 32, "feedback": False},
        "optimizer": {"anneal": True},
    },
    "thespis/Lock-v0": {  # an unroll is an episode and the row of its reset, a batch is one update for each episode
        "total_steps": 20_000,
        "actors": 1,
        "envs_per_actor": 4,
        "unroll_length": 11,
        "sequence_length": 11,
        "burn_in": 0,
        "target_period": 50,
        "publish_every": 1,
        "replay": {"capacity": 20_000, "warm_up": 32, "samples_per_insert": 32.0},
        "optimizer": {"learning_rate": 2e-3},
    },
    "ALE/*": {  # table 2
        "total_steps": 50_000_000,
        "envs_per_actor": 8,
        "unroll_length": 40,
        "sequence_length": 80,
        "burn_in": 40,
        "batch": 64,
        "publish_every": 1,
        "target_period": 2_500,
        "replay": {"capacity": 1_000_000, "warm_up": 5_000, "samples_per_insert": 0.8},
        "network": {"lstm": 512},
        "optimizer": {"learning_rate": 1e-4},
        "checkpoint_every": 1800.0,
        "eval_every": 600.0,
        "stall_timeout": 600.0,
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be learned or stored, before anything starts."""
    from thespis.experience.tables import affordable, row_layout, state_bytes
    from thespis.networks.heads import count_actions

    count_actions(spaces.action_space)
    cfg.check_rows(affordable(cfg.replay, row_layout(spaces, cfg.replay), cfg.replay.capacity, state_bytes(cfg)))


def build_replay(ctx: Context, cfg: Config, capacity: int, limiter: SamplesPerInsert) -> roles.ReplayTable:
    from thespis.experience.tables import sequence_table

    return sequence_table(ctx, cfg, capacity, limiter)


def build_learner(ctx: Context, cfg: Config, samples: Any, prioritise: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.r2d2 import R2D2Update
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Draws

    update = R2D2Update(learner_network(ctx, cfg), cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    source = Draws(ctx, samples, cfg.batch, cfg.batches_per_draw, prioritise)
    return roles.Learner(ctx, source, update, exchange, publish, cfg.budget, cfg.publish_every)


def program(cfg: Config) -> Program:
    return value_program("r2d2", cfg, apex.build_actor, build_replay, build_learner)
