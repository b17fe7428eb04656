"""R2D2 (Kapturowski et al., 2019): recurrent Q-learning from replayed sequences, with stored states and burn-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from thespis.algorithms.base import Algorithm, Exploration
from thespis.algorithms.dqn import DiscreteQ, EpsilonLadder
from thespis.core.bounds import Count, CountOrZero, Fraction, Threshold
from thespis.core.config import OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class Sequences:
    """Sequences of steps, sampled from a replay buffer, for recurrent networks.

    unroll     |--------|--------|--------|      one sequence starts with each unroll
    sequence   [burn-in |     trained     ]
    """

    KIND: ClassVar = "sequences"

    unroll_length: Count = 10
    """Steps per unroll. An actor sends an unroll, then pulls newer weights; each unroll starts a sequence (paper:
    40)."""
    sequence_length: Count = 20
    """Trained steps per sequence (paper: 80)."""
    burn_in: CountOrZero = 10
    """Burn-in steps before the trained steps, to refresh the recurrent state; none at an episode's start (paper:
    40)."""
    state: Literal["stored", "zero"] = "stored"
    """Recurrent state at the start of burn-in: stored (the actor's state), or zero."""
    eta: Fraction = 0.9
    """Priority mix (eta): a sequence's priority is eta * max + (1 - eta) * mean of its TD errors (paper: 0.9)."""
    n_step: Count = 5
    """Length of n-step returns (paper: 5)."""
    batch: Count = 32
    """Batch size in sequences (paper: 64)."""
    batches_per_draw: Count = 1
    """Batches per request to the replay buffer."""
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(
            warm_up=200,
            samples_per_insert=4.0,
            priority_exponent=0.9,
            importance_exponent=0.6,
            actor_priorities=True,
        )
    )

    def __post_init__(self) -> None:
        if self.unroll_length + self.burn_in > self.sequence_length:
            raise ThespisError(
                f"sequences start every {self.unroll_length} steps and burn in {self.burn_in}, so with "
                f"--sequence-length {self.sequence_length} some steps would never be trained; give it at least "
                f"{self.unroll_length + self.burn_in}, or lower --unroll-length or --burn-in"
            )

    @property
    def per_sample(self) -> int:
        """Sequences per request to the replay."""
        return self.batch * self.batches_per_draw

    def per_insert(self, environments: int) -> int:
        """Upper bound of the sequences that one unroll completes: the open ones, and one per episode end."""
        waiting = (self.burn_in + self.sequence_length) // self.unroll_length + 2
        return environments * (self.unroll_length + waiting)

    def check_rows(self, rows: int, environments: int) -> None:
        """Refuse a replay of `rows` steps if it could overwrite incomplete sequences."""
        window = self.burn_in + self.sequence_length + 2 * self.unroll_length
        least = max(2 * environments * window, self.replay.warm_up * self.unroll_length)
        if rows < least:
            raise ThespisError(
                f"a replay of {rows} steps cannot hold the sequences in progress or the warm-up "
                f"({self.replay.warm_up} sequences); raise --replay.capacity and --replay.bytes to {least} steps"
            )


Replayed = Transitions | Sequences
"""The items that a replay can hold."""


@dataclass(frozen=True)
class R2D2(DiscreteQ, Algorithm[Sequences]):
    """Recurrent Q-learning from replayed sequences, with value rescaling."""

    DIVISIBLE: ClassVar[bool] = True

    items: Sequences = inline(Sequences)
    discount: Fraction = 0.997
    """Discount factor (gamma) (paper: 0.997)."""
    huber: Threshold = float("inf")
    """Huber threshold: the loss is quadratic up to this TD error and linear beyond (paper: inf)."""
    exploration: Exploration = inline(EpsilonLadder)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QNetworkConfig = field(default_factory=lambda: QNetworkConfig(hidden=(64,), lstm=64, dueling=True))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(epsilon=1e-3))

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The R2D2 update."""
        from thespis.algorithms.updates.r2d2 import R2D2Update

        return R2D2Update(network, self)
