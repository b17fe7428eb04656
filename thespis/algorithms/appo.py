"""APPO: PPO's clipped loss on V-trace advantages, of unrolls that slightly older policies made.

RLlib's algorithm of that name, which refers to IMPACT (Luo et al., 2020, arXiv:1912.00167), without the target network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from thespis.algorithms.base import Algorithm, Exploration, Sampled
from thespis.core.bounds import Bounds, Fraction, NonNegative, Positive, Threshold
from thespis.core.config import NetworkConfig, OptimizerConfig, RewardConfig, Unrolls
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class APPO(Algorithm[Unrolls]):
    """One clipped step on each batch of unrolls; V-trace corrects the values for the age of the policy that acted."""

    items: Unrolls = inline(Unrolls)
    discount: Fraction = 0.99
    """Discount factor (IMPALA)."""
    clip: Positive = 0.2
    """How far the probability of an action may be from that under the policy that acted, as a share of it (PPO: 0.2,
    RLlib: 0.4)."""
    entropy_cost: NonNegative = 0.01
    """Weight of the entropy bonus (RLlib)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss (RLlib)."""
    rho_bar: Threshold = 1.0
    """Clip of the importance weights in the temporal differences: decides which policy is evaluated."""
    c_bar: Annotated[float, Bounds(least=0, infinite=True)] = 1.0
    """Clip of the trace weights: decides how far corrections reach back."""
    trace_decay: Fraction = 1.0
    """Lambda of V-trace: extra decay of the traces."""
    normalize_advantages: bool = True
    """Give the advantages of each batch mean 0 and deviation 1, as PPO does."""
    exploration: Exploration = inline(Sampled)
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    @property
    def off_policy(self) -> bool:
        return True

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.appo import APPOUpdate

        return APPOUpdate(network, self)
