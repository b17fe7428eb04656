"""V-trace actor-critic (Espeholt et al., 2018, arXiv:1802.01561), and A2C: V-trace without the correction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Bounds, Fraction, NonNegative, Threshold
from thespis.core.config import OptimizerConfig, RewardConfig, Unrolls
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class VTrace(Algorithm[Unrolls]):
    """V-trace actor-critic: policy gradient and value regression on returns corrected for lag."""

    DIVISIBLE: ClassVar[bool] = True
    SHARDABLE: ClassVar = True

    items: Unrolls = inline(Unrolls)
    discount: Fraction = 0.99
    """Discount factor (gamma) (paper: 0.99)."""
    entropy_cost: NonNegative = 0.01
    """Weight of the entropy bonus (paper: 0.01 on Atari)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss (paper: 0.5)."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the loss over the batch. Change learning rate and costs with it (paper: sum)."""
    correction: bool = True
    """Correct returns for lag with importance weights; off gives A2C with plain n-step returns."""
    rho_bar: Threshold = 1.0
    """Truncation of the importance weights in the TD errors (rho bar); it sets which policy is evaluated."""
    c_bar: Annotated[float, Bounds(least=0, infinite=True)] = 1.0
    """Truncation of the trace weights (c bar); it sets how far corrections propagate."""
    pg_rho_bar: Threshold = 1.0
    """Truncation of the importance weights in the policy gradient."""
    trace_decay: Fraction = 1.0
    """V-trace lambda: additional decay of the traces (paper: 1)."""
    reward: RewardConfig = field(default_factory=lambda: RewardConfig(kind="scale", scale=0.1))
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=3e-3, anneal=True, clip=0.5)
    )

    @property
    def alias(self) -> str:
        """`a2c` without the correction."""
        return "" if self.correction else "a2c"

    @property
    def off_policy(self) -> bool:
        """Only the correction makes the update off-policy."""
        return self.correction

    @property
    def averages(self) -> bool:
        """Whether the reduction is `mean`."""
        return self.reduction == "mean"

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The V-trace update."""
        from thespis.algorithms.updates.vtrace import VTraceUpdate

        return VTraceUpdate(network, self)


VARIANTS = (VTrace(correction=False),)
"""Settings of this module that have a name of their own."""
