"""Deterministic policy gradients (Silver et al., 2014; Lillicrap et al., 2016), as Ape-X DPG learns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration, check_feed_forward
from thespis.core.bounds import Count, Fraction, Positive
from thespis.core.config import OptimizerConfig, ReplayConfig, RewardConfig, Transitions
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import DPGNetworkConfig

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.core.types import Array
    from thespis.envs.spaces import Spaces
    from thespis.networks.acting import Stepper
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class NoiseLadder:
    """Normal noise on continuous actions, with another constant deviation in each environment."""

    noise: Positive = 0.4
    """Deviation of the noise on the actions of the environment that explores most; actions reach from -1 to 1."""
    least_noise: Positive = 0.05
    """That of the one that explores least; from one to the other it falls by equal factors (paper: 0.3 for all)."""

    def __post_init__(self) -> None:
        if self.least_noise > self.noise:
            raise ThespisError("--noise is the most and --least-noise the least of it; give them in order")

    def describe(self) -> str:
        return f"noise is added to the actions, in each environment another: --noise {self.noise:g} at most"

    def amount(self, steps: int, environments: range, total: int) -> Array:
        import numpy as np

        rungs = np.arange(environments.start, environments.stop)
        return np.asarray(self.noise * (self.least_noise / self.noise) ** (rungs / max(1, total - 1)))


@dataclass(frozen=True)
class DPG(Algorithm[Transitions]):
    """An actor that climbs the slope of its critic, and a critic that learns from replayed transitions."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("target_period",)

    items: Transitions = inline(
        lambda: Transitions(replay=ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True))
    )
    discount: Fraction = 0.99
    """Discount factor."""
    target_period: Count = 100
    """Updates between copies of actor and critic to their targets (paper)."""
    slope_clip: Positive = 1.0
    """Bound of every element of dQ/da, with which the actor learns (paper)."""
    exploration: Exploration = inline(NoiseLadder)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: DPGNetworkConfig = field(default_factory=DPGNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        check_feed_forward(self.network)

    def validate(self, spaces: Spaces) -> None:
        from thespis.networks.dpg import DPGNetwork, bounded

        super().validate(spaces)
        bounded(spaces.action_space)
        self.check_factory(spaces, DPGNetwork, "a network without a critic")

    def network_class(self) -> Callable[..., PolicyNetwork]:
        from thespis.networks.dpg import DPGNetwork

        return DPGNetwork

    def build_stepper(self, network: PolicyNetwork, rng: np.random.Generator) -> Stepper:
        from thespis.networks.dpg import DPGNetwork, ValuingStepper

        assert isinstance(network, DPGNetwork)
        return ValuingStepper(network, rng)

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.dpg import DPGUpdate
        from thespis.networks.dpg import DPGNetwork

        assert isinstance(network, DPGNetwork)
        return DPGUpdate(network, self, count_updates)
