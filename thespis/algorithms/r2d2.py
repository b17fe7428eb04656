"""R2D2 (Kapturowski et al., 2019): recurrent Q-learning from replayed sequences, with stored states and burn-in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration
from thespis.algorithms.dqn import DiscreteQ, EpsilonLadder
from thespis.core.bounds import Fraction, Threshold
from thespis.core.config import OptimizerConfig, QNetworkConfig, RewardConfig, Sequences
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


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
