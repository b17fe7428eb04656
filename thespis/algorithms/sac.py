"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905), with twin critics and a learned temperature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Bounds, Count, Fraction, Positive
from thespis.core.config import RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import DPGNetworkConfig

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class SAC(Algorithm[Transitions]):
    """Soft actor-critic: a stochastic policy for continuous actions maximises return and entropy."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("tau", "target_entropy", "learn_temperature")
    FIXED: ClassVar[tuple[str, ...]] = ("critics",)  # a checkpoint holds the weights of this many critics
    DIVISIBLE: ClassVar[bool] = True

    items: Transitions = inline(lambda: Transitions(n_step=1))
    discount: Fraction = 0.99
    """Discount factor (gamma) (paper: 0.99)."""
    tau: Annotated[float, Bounds(above=0, most=1)] = 0.005
    """Soft update rate of the target critics (tau) (paper: 0.005)."""
    critics: Count = 2
    """Number of critics; targets and policy use the minimum of their values (paper: 2)."""
    temperature: Positive = 1.0
    """Entropy temperature (alpha): weight of the entropy in the objective. With --learn-temperature, its initial
    value."""
    learn_temperature: bool = True
    """Adjust the temperature to keep the policy's entropy at its target (paper: on)."""
    target_entropy: float | None = None
    """Target entropy in nats; None uses minus the number of action dimensions (paper: None)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: DPGNetworkConfig = field(default_factory=DPGNetworkConfig)

    def __post_init__(self) -> None:
        if self.items.replay.actor_priorities:
            raise ThespisError(
                "sac's actors have no TD errors, because they do not evaluate the critics; leave "
                "--replay.actor-priorities off"
            )

    def validate(self, spaces: Spaces) -> None:
        """Refuse actions that are not a bounded Box, and custom networks without critics."""
        from thespis.algorithms.updates.sac import SACNetwork
        from thespis.networks.dpg import require_bounded

        super().validate(spaces)
        require_bounded(spaces.action_space)
        self.check_factory(spaces, SACNetwork, "a network without critics and a temperature")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """A stochastic policy, its critics and the temperature."""
        from thespis.algorithms.updates.sac import SACNetwork

        return functools.partial(SACNetwork, critics=self.critics, temperature=self.temperature)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The SAC update."""
        from thespis.algorithms.updates.sac import SACNetwork, SACUpdate

        assert isinstance(network, SACNetwork)
        return SACUpdate(network, self, rng, count_updates)
