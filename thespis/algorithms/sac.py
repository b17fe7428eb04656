"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905), with twin critics and a temperature that is learned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from thespis.algorithms.base import Algorithm, Exploration, Sampled, check_feed_forward
from thespis.core.bounds import Bounds, Count, Fraction, Positive
from thespis.core.config import OptimizerConfig, RewardConfig, Transitions
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
    """A stochastic policy of continuous actions that maximises return and entropy, from replayed transitions."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("tau", "target_entropy", "learn_temperature")
    FIXED: ClassVar[tuple[str, ...]] = ("critics",)  # checkpoints hold the weights of this many critics

    items: Transitions = inline(lambda: Transitions(n_step=1))
    discount: Fraction = 0.99
    """Discount factor (paper)."""
    tau: Annotated[float, Bounds(above=0, most=1)] = 0.005
    """Share of the critics that their targets take over after each update (paper)."""
    critics: Count = 2
    """Critics, of which targets and policy take the least value (paper: 2)."""
    temperature: Positive = 1.0
    """What a nat of entropy is worth in rewards; at first, if it is learned."""
    learn_temperature: bool = True
    """Move the temperature so that the policy's entropy meets its target (paper); else it stays."""
    target_entropy: float | None = None
    """Entropy to meet, in nats; None for minus the number of the action's dimensions (paper)."""
    exploration: Exploration = inline(Sampled)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: DPGNetworkConfig = field(default_factory=DPGNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        check_feed_forward(self.network)
        if self.items.replay.actor_priorities:
            raise ThespisError(
                "sac's actors ask no critic, so they know no TD errors; leave --replay.actor-priorities False"
            )

    def validate(self, spaces: Spaces) -> None:
        from thespis.algorithms.updates.sac import SACNetwork
        from thespis.networks.dpg import bounded

        super().validate(spaces)
        bounded(spaces.action_space)
        self.check_factory(spaces, SACNetwork, "a network without critics and a temperature")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        from thespis.algorithms.updates.sac import SACNetwork

        return functools.partial(SACNetwork, critics=self.critics, temperature=self.temperature)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.sac import SACNetwork, SACUpdate

        assert isinstance(network, SACNetwork)
        return SACUpdate(network, self, rng, count_updates)
