"""DQN (Mnih et al., 2015, doi:10.1038/nature14236) with n-step returns.

Options: double Q-learning (van Hasselt et al., 2016), dueling heads (Wang et al., 2016) and prioritised replay
(Schaul et al., 2016).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration
from thespis.core.bounds import Count, CountOrZero, Fraction, NonNegative, Threshold
from thespis.core.config import QNetworkConfig, RewardConfig, Transitions
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class EpsilonSchedule:
    """Epsilon-greedy exploration. Epsilon falls linearly and is the same in all environments."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("epsilon_steps",)
    epsilon_start: Fraction = 1.0
    """Initial epsilon of epsilon-greedy exploration (paper: 1)."""
    epsilon_end: Fraction = 0.04
    """Final epsilon, reached after --epsilon-steps (paper: 0.1)."""
    epsilon_steps: CountOrZero = 8_000
    """Environment steps of all actors over which epsilon falls linearly (paper: 1,000,000)."""

    def describe(self) -> str:
        """See `Exploration`."""
        return f"epsilon-greedy: --epsilon-start {self.epsilon_start:g} to --epsilon-end {self.epsilon_end:g}"

    def amount(self, steps: int, environments: range, total: int) -> float:
        """Epsilon after `steps` steps."""
        done = min(1.0, steps / max(1, self.epsilon_steps))
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


@dataclass(frozen=True)
class EpsilonLadder:
    """Epsilon-greedy exploration with a constant epsilon per environment (Horgan et al., 2018)."""

    epsilon: Fraction = 0.4
    """Largest epsilon of epsilon-greedy exploration (paper: 0.4)."""
    epsilon_exponent: NonNegative = 7.0
    """Exponent (alpha) of the epsilon ladder: environment i of N uses epsilon^(1 + alpha * i / (N - 1)) (paper: 7)."""

    def describe(self) -> str:
        """See `Exploration`."""
        return f"epsilon-greedy, different in each environment: --epsilon {self.epsilon:g} at most"

    def amount(self, steps: int, environments: range, total: int) -> Array:
        """The epsilon of each environment."""
        import numpy as np

        rungs = np.arange(environments.start, environments.stop)
        return np.asarray(self.epsilon ** (1.0 + self.epsilon_exponent * rungs / max(1, total - 1)))


@dataclass(frozen=True)
class DiscreteQ:
    """Part of algorithms with a Q-value for every discrete action: the targets, the network, and the spaces it fits."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("double", "target_period")

    double: bool = True
    """Use double Q-learning: the online network selects the next action, the target network evaluates it."""
    target_period: Count = 100
    """Copy the network to its target network every N updates."""

    def validate(self, spaces: Spaces) -> None:
        """Refuse actions that are not discrete."""
        from thespis.envs.spaces import refuse_composite_actions
        from thespis.networks.heads import count_actions

        refuse_composite_actions(spaces.action_space)
        count_actions(spaces.action_space)

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """A Q-network."""
        from thespis.networks.q import QNetwork

        return QNetwork


@dataclass(frozen=True)
class DQN(DiscreteQ, Algorithm[Transitions]):
    """Q-learning from replayed transitions, with a target network."""

    DIVISIBLE: ClassVar[bool] = True

    items: Transitions = inline(Transitions)
    discount: Fraction = 0.99
    """Discount factor (gamma)."""
    huber: Threshold = 1.0
    """Huber threshold: the loss is quadratic up to this TD error and linear beyond."""
    exploration: Exploration = inline(EpsilonSchedule)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QNetworkConfig = field(default_factory=QNetworkConfig)

    def __post_init__(self) -> None:
        self.network.check_feed_forward()

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The DQN update."""
        from thespis.algorithms.updates.dqn import DQNUpdate

        return DQNUpdate(network, self, count_updates)
