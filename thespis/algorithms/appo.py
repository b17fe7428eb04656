"""APPO: PPO's clipped loss on V-trace advantages; slightly older policies may collect the unrolls.

This is RLlib's APPO, based on IMPACT (Luo et al., 2020, arXiv:1912.00167), without the target network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Bounds, Fraction, NonNegative, Positive, Threshold
from thespis.core.config import OptimizerConfig, RewardConfig, Unrolls
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class APPO(Algorithm[Unrolls]):
    """Asynchronous PPO: one clipped step per batch of unrolls. V-trace corrects the value targets for lag."""

    DIVISIBLE: ClassVar[bool] = True
    SHARDABLE: ClassVar = True

    items: Unrolls = inline(Unrolls)
    discount: Fraction = 0.99
    """Discount factor (gamma) (IMPALA: 0.99)."""
    clip: Positive = 0.2
    """Clip range of the probability ratio to the behaviour policy (PPO: 0.2, RLlib: 0.4)."""
    entropy_cost: NonNegative = 0.01
    """Weight of the entropy bonus (RLlib: 0.01)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss (RLlib: 0.5)."""
    rho_bar: Threshold = 1.0
    """V-trace truncation of the importance weights in the TD errors (rho bar); it sets which policy is evaluated."""
    c_bar: Annotated[float, Bounds(least=0, infinite=True)] = 1.0
    """V-trace truncation of the trace weights (c bar); it sets how far corrections propagate."""
    trace_decay: Fraction = 1.0
    """V-trace lambda: additional decay of the traces."""
    normalize_advantages: bool = True
    """Normalise the advantages of each batch to mean 0 and standard deviation 1, as PPO does."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    @property
    def off_policy(self) -> bool:
        """V-trace corrects for lag, so workers may act while they learn."""
        return True

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The APPO update."""
        from thespis.algorithms.updates.appo import APPOUpdate

        return APPOUpdate(network, self)
