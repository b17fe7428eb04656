"""DQN (Mnih et al., 2015, doi:10.1038/nature14236) with n-step returns, and as options the double estimator
(van Hasselt et al., 2016), dueling heads (Wang et al., 2016) and priorities (Schaul et al., 2016)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration, check_feed_forward
from thespis.core.bounds import Count, CountOrZero, Fraction, NonNegative, Threshold
from thespis.core.config import OptimizerConfig, QNetworkConfig, RewardConfig, Transitions
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class EpsilonSchedule:
    """Epsilon-greedy, with an epsilon that falls linearly and is the same for all environments."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("epsilon_steps",)
    epsilon_start: Fraction = 1.0
    """Share of random actions at first (paper)."""
    epsilon_end: Fraction = 0.04
    """Share of random actions from --epsilon-steps on (paper: 0.1)."""
    epsilon_steps: CountOrZero = 8_000
    """Environment steps of all actors over which the share falls (paper: 1,000,000)."""

    def describe(self) -> str:
        return f"a share of the actions is random: --epsilon-start {self.epsilon_start:g} to {self.epsilon_end:g}"

    def amount(self, steps: int, environments: range, total: int) -> float:
        done = min(1.0, steps / max(1, self.epsilon_steps))
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


@dataclass(frozen=True)
class EpsilonLadder:
    """Epsilon-greedy, with another constant epsilon in each environment (Horgan et al., 2018)."""

    epsilon: Fraction = 0.4
    """Share of random actions of the environment that explores most (paper)."""
    epsilon_exponent: NonNegative = 7.0
    """Environment i of N explores epsilon^(1 + this * i / (N - 1)) (paper)."""

    def describe(self) -> str:
        return f"a share of the actions is random, in each environment another: --epsilon {self.epsilon:g} at most"

    def amount(self, steps: int, environments: range, total: int) -> Array:
        import numpy as np

        rungs = np.arange(environments.start, environments.stop)
        return np.asarray(self.epsilon ** (1.0 + self.epsilon_exponent * rungs / max(1, total - 1)))


@dataclass(frozen=True)
class DQN(Algorithm[Transitions]):
    """Q-learning from replayed transitions, towards the values of a target network."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("double", "target_period")

    items: Transitions = inline(Transitions)
    discount: Fraction = 0.99
    """Discount factor."""
    double: bool = True
    """The network chooses the next action and the target values it; else the target does both."""
    huber: Threshold = 1.0
    """TD errors beyond this pull no harder."""
    target_period: Count = 100
    """Updates between copies of the network to its target."""
    exploration: Exploration = inline(EpsilonSchedule)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        check_feed_forward(self.network)

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
        from thespis.algorithms.updates.dqn import DQNUpdate

        return DQNUpdate(network, self, count_updates)
