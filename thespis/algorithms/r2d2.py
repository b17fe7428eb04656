"""R2D2 (Kapturowski et al., 2019): recurrent Q-learning from sequences that start in a stored state and burn in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from thespis.algorithms.base import Algorithm, Exploration
from thespis.algorithms.dqn import EpsilonLadder
from thespis.core.bounds import Count, CountOrZero, Fraction, Threshold
from thespis.core.config import OptimizerConfig, QNetworkConfig, ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class Sequences:
    """Windows of steps in a replay, for recurrent networks.

    unroll     |--------|--------|--------|      one window starts with each unroll
    window     [burn-in |   learned from  ]
    """

    KIND: ClassVar = "sequences"

    unroll_length: Count = 10
    """Steps per unroll: an actor sends them and takes newer weights this often, and a sequence starts (paper: 40)."""
    sequence_length: Count = 20
    """Steps of a sequence that are learned from (paper: 80)."""
    burn_in: CountOrZero = 10
    """Steps before these that only bring the recurrent state up to date; none at an episode's start (paper: 40)."""
    state: Literal["stored", "zero"] = "stored"
    """What burn-in starts from: the state that the actor was in, or zeros."""
    eta: Fraction = 0.9
    """Share of a sequence's largest TD error in its priority; the mean has the rest (paper)."""
    n_step: Count = 5
    """Rewards summed before bootstrapping (paper)."""
    batch: Count = 32
    """Sequences per update (paper: 64)."""
    batches_per_draw: Count = 1
    """Batches that one call to the replay brings."""
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
                f"--sequence-length {self.sequence_length} some steps would never be learned from; give it at least "
                f"{self.unroll_length + self.burn_in}, or lower --unroll-length or --burn-in"
            )

    @property
    def per_sample(self) -> int:
        """Sequences that one call to the replay brings."""
        return self.batch * self.batches_per_draw

    def per_insert(self, environments: int) -> int:
        """The most sequences that one unroll completes: those open, and one of every episode that ends in it."""
        waiting = (self.burn_in + self.sequence_length) // self.unroll_length + 2
        return environments * (self.unroll_length + waiting)

    def check_rows(self, rows: int, environments: int) -> None:
        """Refuse a replay of `rows` steps if it could overwrite sequences before they are complete."""
        window = self.burn_in + self.sequence_length + 2 * self.unroll_length
        least = max(2 * environments * window, self.replay.warm_up * self.unroll_length)
        if rows < least:
            raise ThespisError(
                f"a replay of {rows} steps cannot hold the sequences that all environments have open, or the warm-up "
                f"({self.replay.warm_up} sequences); give --replay.capacity and --replay.bytes for {least} steps"
            )


Replayed = Transitions | Sequences
"""Items that a replay holds."""


@dataclass(frozen=True)
class R2D2(Algorithm[Sequences]):
    """Q-learning on rescaled values, through the memory of a recurrent network."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("double", "target_period")

    items: Sequences = inline(Sequences)
    discount: Fraction = 0.997
    """Discount factor (paper)."""
    double: bool = True
    """The network chooses the next action and the target values it; else the target does both."""
    huber: Threshold = float("inf")
    """TD errors beyond this pull no harder (paper: none is too large)."""
    target_period: Count = 100
    """Updates between copies of the network to its target."""
    exploration: Exploration = inline(EpsilonLadder)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QNetworkConfig = field(default_factory=lambda: QNetworkConfig(hidden=(64,), lstm=64, dueling=True))
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(epsilon=1e-3))

    def validate(self, spaces: Spaces) -> None:
        from thespis.networks.heads import count_actions

        super().validate(spaces)
        count_actions(spaces.action_space)

    def network_class(self) -> Callable[..., PolicyNetwork]:
        from thespis.networks.q import QNetwork

        return QNetwork

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.r2d2 import R2D2Update

        return R2D2Update(network, self)
