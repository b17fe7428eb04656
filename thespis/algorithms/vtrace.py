"""V-trace actor-critic (Espeholt et al., 2018, arXiv:1802.01561), and A2C, which is V-trace without its correction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from thespis.algorithms.base import Algorithm, Exploration, Sampled
from thespis.core.bounds import Bounds, Fraction, NonNegative, Threshold
from thespis.core.config import NetworkConfig, OptimizerConfig, RewardConfig, Unrolls
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class VTrace(Algorithm[Unrolls]):
    """Policy gradient and value regression on returns that are corrected for the age of the policy that acted."""

    items: Unrolls = inline(Unrolls)
    discount: Fraction = 0.99
    """Discount factor (paper)."""
    entropy_cost: NonNegative = 0.01
    """Weight of the entropy bonus (paper, Atari)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss (paper)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Mean or sum of the losses over the batch (paper: sum; learning rate and costs go with it)."""
    correction: bool = True
    """Importance weights correct for the age of the policy that acted; off is A2C, n-step returns as they are."""
    rho_bar: Threshold = 1.0
    """Clip of the importance weights in the temporal differences: decides which policy is evaluated."""
    c_bar: Annotated[float, Bounds(least=0, infinite=True)] = 1.0
    """Clip of the trace weights: decides how far corrections reach back."""
    pg_rho_bar: Threshold = 1.0
    """Clip of the importance weights of the policy gradient."""
    trace_decay: Fraction = 1.0
    """Lambda of V-trace: extra decay of the traces (paper: 1)."""
    exploration: Exploration = inline(Sampled)
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    @property
    def alias(self) -> str:
        return "" if self.correction else "a2c"

    @property
    def off_policy(self) -> bool:
        return self.correction

    @property
    def averages(self) -> bool:
        return self.reduction == "mean"

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.vtrace import VTraceUpdate

        return VTraceUpdate(network, self)


NAMED = (VTrace(correction=False),)
