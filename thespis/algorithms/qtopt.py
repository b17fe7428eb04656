"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning that finds the best action by search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from thespis.algorithms.base import Algorithm, Exploration
from thespis.algorithms.dqn import EpsilonSchedule
from thespis.core.bounds import Fraction, NonNegative
from thespis.core.config import ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import QFunctionConfig

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.qtopt import Labeller
    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner


@dataclass(frozen=True)
class Examples(Transitions):
    """Transitions with a target, which Bellman updaters compute."""

    KIND: ClassVar = "labelled examples"


@dataclass(frozen=True)
class QTOpt(Algorithm[Examples]):
    """QT-Opt: regression of Q on targets. Bellman updaters compute the targets with two lagged networks."""

    items: Examples = inline(lambda: Examples(batch=64, n_step=1, replay=ReplayConfig(samples_per_insert=64.0)))
    discount: Fraction = 0.98
    """Discount factor (gamma) (paper: 0.9)."""
    noise: NonNegative = 0.1
    """Standard deviation of the noise on continuous actions; actions range from -1 to 1."""
    loss: Literal["squared", "cross-entropy"] = "squared"
    """Loss: squared, or cross-entropy for returns in [0, 1], where Q is a success probability (paper:
    cross-entropy)."""
    exploration: Exploration = inline(lambda: EpsilonSchedule(epsilon_end=0.05, epsilon_steps=2_000))
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: QFunctionConfig = field(default_factory=QFunctionConfig)

    def __post_init__(self) -> None:
        if self.reward.normalize or self.items.replay.priority_exponent:
            raise ThespisError(
                "qtopt stores shaped rewards and samples uniformly; leave --reward.normalize off and "
                "--replay.priority-exponent 0"
            )
        if self.network.lstm or self.network.normalize_observations or len(self.network.hidden) < 2:
            raise ThespisError(
                "the Q-function is feed-forward, and the action enters at its second layer; leave --network.lstm 0 and "
                "--network.normalize-observations off, and give --network.hidden at least two layers"
            )

    def validate(self, spaces: Spaces) -> None:
        """Refuse actions that the search cannot encode. Actions may mix continuous and discrete parts."""
        from thespis.networks.q_function import QFunctionNetwork, action_parts_of

        action_parts_of(spaces.action_space)
        self.check_factory(spaces, QFunctionNetwork, "a network that is no Q-function")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """A Q-function of observation and action."""
        from thespis.networks.q_function import QFunctionNetwork

        return QFunctionNetwork

    def build_policy_runner(self, network: PolicyNetwork, rng: np.random.Generator) -> PolicyRunner:
        """A policy runner that searches for the best action and adds noise."""
        from thespis.networks.q_function import QFunctionNetwork

        assert isinstance(network, QFunctionNetwork)
        network.distribution.noise = self.noise
        return super().build_policy_runner(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The QT-Opt update."""
        from thespis.algorithms.updates.qtopt import QTOptUpdate
        from thespis.networks.q_function import QFunctionNetwork

        assert isinstance(network, QFunctionNetwork)
        return QTOptUpdate(network, self.loss)

    def build_labeller(self, first: PolicyNetwork, second: PolicyNetwork, rng: np.random.Generator) -> Labeller:
        """Build the labeller, which computes targets from two lagged networks. `rng` drives the search."""
        from thespis.algorithms.updates.qtopt import Labeller
        from thespis.networks.q_function import QFunctionNetwork

        assert isinstance(first, QFunctionNetwork) and isinstance(second, QFunctionNetwork)
        return Labeller(first, second, self.loss, rng)
