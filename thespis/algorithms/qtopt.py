"""QT-Opt (Kalashnikov et al., 2018, arXiv:1806.10293): Q-learning without an actor; a search finds the best action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from thespis.algorithms.base import Algorithm, Exploration
from thespis.algorithms.dqn import EpsilonSchedule
from thespis.core.bounds import Fraction, NonNegative
from thespis.core.config import OptimizerConfig, ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import ScoredNetworkConfig

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.qtopt import Labeller
    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.acting import Stepper
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class Examples(Transitions):
    """Transitions that other workers have labelled with targets."""

    KIND: ClassVar = "labelled examples"


@dataclass(frozen=True)
class QTOpt(Algorithm[Examples]):
    """Regression of Q on targets that other workers have computed with two lagged networks."""

    items: Examples = inline(lambda: Examples(batch=64, n_step=1, replay=ReplayConfig(samples_per_insert=64.0)))
    discount: Fraction = 0.98
    """Discount factor (paper: 0.9)."""
    noise: NonNegative = 0.1
    """Deviation of the noise on continuous actions, which reach from -1 to 1."""
    loss: Literal["squared", "cross-entropy"] = "squared"
    """squared; or cross-entropy, for returns from 0 to 1: Q is a probability of success then (paper)."""
    exploration: Exploration = inline(lambda: EpsilonSchedule(epsilon_end=0.05, epsilon_steps=2_000))
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: ScoredNetworkConfig = field(default_factory=ScoredNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        if self.reward.normalize or self.items.replay.priority_exponent:
            raise ThespisError(
                "rewards stay as they were stored and examples are drawn evenly here; "
                "leave --reward.normalize off and --replay.priority-exponent 0"
            )
        if self.network.lstm or self.network.normalize_observations or len(self.network.hidden) < 2:
            raise ThespisError(
                "Q reads single observations and its first layer does not see the action; leave --network.lstm 0 and "
                "--network.normalize-observations off, and give --network.hidden two layers or more"
            )

    def validate(self, spaces: Spaces) -> None:
        """An action may have several parts, numbers and choices: a search can find all of them."""
        from thespis.networks.scored import ScoredNetwork, parts_of

        parts_of(spaces.action_space)
        self.check_factory(spaces, ScoredNetwork, "no network of Q(x, a)")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        from thespis.networks.scored import ScoredNetwork

        return ScoredNetwork

    def build_stepper(self, network: PolicyNetwork, rng: np.random.Generator) -> Stepper:
        from thespis.networks.scored import ScoredNetwork

        assert isinstance(network, ScoredNetwork)
        network.distribution.noise = self.noise
        return super().build_stepper(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.qtopt import QTOptUpdate
        from thespis.networks.scored import ScoredNetwork

        assert isinstance(network, ScoredNetwork)
        return QTOptUpdate(network, self.loss)

    def build_labeller(self, first: PolicyNetwork, second: PolicyNetwork, rng: np.random.Generator) -> Labeller:
        """What computes the targets of transitions, from two lagged networks. `rng`: of the search."""
        from thespis.algorithms.updates.qtopt import Labeller
        from thespis.networks.scored import ScoredNetwork

        assert isinstance(first, ScoredNetwork) and isinstance(second, ScoredNetwork)
        return Labeller(first, second, self.loss, rng)
