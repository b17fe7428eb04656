"""Deterministic policy gradients (Silver et al., 2014; Lillicrap et al., 2016), with the settings of Ape-X DPG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration
from thespis.core.bounds import Count, Fraction, Positive
from thespis.core.config import ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import DPGNetworkConfig

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner


@dataclass(frozen=True)
class NoiseLadder:
    """Gaussian noise on continuous actions; each environment has its own constant standard deviation."""

    noise: Positive = 0.4
    """Largest standard deviation of the action noise; actions range from -1 to 1."""
    least_noise: Positive = 0.05
    """Smallest standard deviation of the action noise; environments span the range geometrically (paper: 0.3 for
    all)."""

    def __post_init__(self) -> None:
        if self.least_noise > self.noise:
            raise ThespisError(
                f"--least-noise {self.least_noise:g} exceeds --noise {self.noise:g}; lower it or raise --noise"
            )

    def describe(self) -> str:
        """See `Exploration`."""
        return f"noise on the actions, different in each environment: --noise {self.noise:g} at most"

    def amount(self, steps: int, environments: range, total: int) -> Array:
        """The standard deviation of each environment."""
        import numpy as np

        rungs = np.arange(environments.start, environments.stop)
        return np.asarray(self.noise * (self.least_noise / self.noise) ** (rungs / max(1, total - 1)))


@dataclass(frozen=True)
class DPG(Algorithm[Transitions]):
    """Deterministic policy gradients: the policy follows dQ/da of a critic that learns from replayed transitions."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("target_period",)
    DIVISIBLE: ClassVar[bool] = True

    items: Transitions = inline(
        lambda: Transitions(replay=ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True))
    )
    discount: Fraction = 0.99
    """Discount factor (gamma)."""
    target_period: Count = 100
    """Copy policy and critic to their target networks every N updates (paper: 100)."""
    slope_clip: Positive = 1.0
    """Clip each element of dQ/da to this magnitude in the policy gradient (paper: 1)."""
    exploration: Exploration = inline(NoiseLadder)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: DPGNetworkConfig = field(default_factory=DPGNetworkConfig)

    def validate(self, spaces: Spaces) -> None:
        """Refuse actions that are not a bounded Box, and custom networks without a critic."""
        from thespis.networks.dpg import DPGNetwork, require_bounded

        super().validate(spaces)
        require_bounded(spaces.action_space)
        self.check_factory(spaces, DPGNetwork, "a network without a critic")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """A deterministic policy and its critic."""
        from thespis.networks.dpg import DPGNetwork

        return DPGNetwork

    def build_policy_runner(self, network: PolicyNetwork, rng: np.random.Generator) -> PolicyRunner:
        """A policy runner that also asks the critic if actors compute initial priorities."""
        from thespis.networks.dpg import DPGNetwork, ValuingPolicyRunner

        if not self.items.replay.actor_priorities:
            return super().build_policy_runner(network, rng)
        assert isinstance(network, DPGNetwork)
        return ValuingPolicyRunner(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The DPG update."""
        from thespis.algorithms.updates.dpg import DPGUpdate
        from thespis.networks.dpg import DPGNetwork

        assert isinstance(network, DPGNetwork)
        return DPGUpdate(network, self, count_updates)
