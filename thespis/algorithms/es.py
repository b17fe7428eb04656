"""Evolution Strategies (Salimans et al., 2017, arXiv:1703.03864), and augmented random search (Mania et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Count, NonNegative, Positive
from thespis.core.config import OptimizerConfig
from thespis.core.errors import ThespisError
from thespis.core.settings import inline
from thespis.networks.configs import EvolvedNetworkConfig

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class Episodes:
    """Whole episodes of perturbed policies, of which the returns and the lengths count."""

    KIND: ClassVar = "returns of episodes"

    cap_factor: NonNegative = 0.0
    """Cut episodes at this many times the mean length of the generation before (paper: 2); 0 never does."""
    longest_episode: Count = 100_000
    """Steps after which an episode is cut off in any case."""

    def __post_init__(self) -> None:
        if self.cap_factor and self.cap_factor <= 1.0:
            raise ThespisError(f"--cap-factor is {self.cap_factor:g}, so episodes could only shrink; give more than 1")


@dataclass(frozen=True)
class ParameterNoise:
    """Normal noise on the parameters, the same in all steps of an episode."""

    deviation: float

    def describe(self) -> str:
        return f"noise is added to the parameters: deviation {self.deviation:g}"

    def amount(self, steps: int, environments: range, total: int) -> None:
        return None


@dataclass(frozen=True)
class StepConfig:
    """How the parameters follow the weighted noise of a generation."""

    kind: Literal["adam", "sgd"] = "adam"
    """adam (paper) or sgd."""
    learning_rate: NonNegative = 0.01
    """Step size (paper)."""
    weight_decay: NonNegative = 0.005
    """Share of the parameters that is subtracted in the gradient (paper's code)."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    epsilon: Positive = 1e-8
    """adam: epsilon."""

    @property
    def rule(self) -> OptimizerConfig:
        """The optimiser, with the other constants of the paper's code."""
        return OptimizerConfig(kind=self.kind, epsilon=self.epsilon, beta2=0.999, momentum=0.0)


@dataclass(frozen=True)
class ARSConfig:
    """--variant ars: augmented random search, with a linear policy on normalised observations."""

    pairs: Count = 8
    """Directions per generation."""
    top: Count = 8
    """Directions that count, by the better of their two returns."""
    noise: Positive = 0.03
    """Standard deviation of the perturbations."""
    step_size: NonNegative = 0.02
    """Step size, in units of the deviation of the returns that count."""
    survival_bonus: float = 0.0
    """Subtracted from every reward before returns are compared: 1 where staying alive pays 1 a step."""

    def __post_init__(self) -> None:
        if self.top > self.pairs >= 1:
            raise ThespisError(f"--ars.top is {self.top}; give at most --ars.pairs")


@dataclass(frozen=True)
class ES(Algorithm[Episodes]):
    """The parameters move towards the perturbations whose episodes did well; no gradient is computed."""

    items: Episodes = inline(Episodes)
    variant: Literal["es", "ars"] = "es"
    """es: ranks of all returns, Adam. ars: augmented random search (Mania et al., 2018; --ars.*)."""
    pairs: Count = 32
    """Pairs of mirrored perturbations per generation (paper: 5,000 on Humanoid)."""
    noise: Positive = 0.05
    """Standard deviation of the perturbations (paper: 0.02)."""
    network: EvolvedNetworkConfig = field(default_factory=EvolvedNetworkConfig)
    optimizer: StepConfig = field(default_factory=StepConfig)
    ars: ARSConfig = field(default_factory=ARSConfig)

    def __post_init__(self) -> None:
        if self.network.lstm:
            raise ThespisError("evolution strategies train feed-forward networks here; --network.lstm must stay 0")

    @property
    def exploration(self) -> ParameterNoise:
        return ParameterNoise(self.deviation)

    @property
    def directions(self) -> int:
        """Pairs of mirrored perturbations per generation, of the chosen variant."""
        return self.ars.pairs if self.variant == "ars" else self.pairs

    @property
    def deviation(self) -> float:
        """Standard deviation of the perturbations."""
        return self.ars.noise if self.variant == "ars" else self.noise

    @property
    def top(self) -> int | None:
        """How many pairs count; None for all."""
        return self.ars.top if self.variant == "ars" else None

    @property
    def survival_bonus(self) -> float:
        return self.ars.survival_bonus if self.variant == "ars" else 0.0

    @property
    def step(self) -> StepConfig:
        ars = StepConfig(kind="sgd", learning_rate=self.ars.step_size, weight_decay=0.0)
        return ars if self.variant == "ars" else self.optimizer

    @property
    def policy_network(self) -> EvolvedNetworkConfig:
        """The network that is built: for ars, a linear one on normalised observations."""
        linear = replace(self.network, hidden=(), normalize_observations=True)
        return linear if self.variant == "ars" else self.network

    def validate(self, spaces: Spaces) -> None:
        from thespis.networks.members import reads_vectors

        super().validate(spaces)
        network = self.policy_network
        if network.normalize_observations and not reads_vectors(spaces.observation_space, network):
            raise ThespisError(
                f"observations are normalised where they are plain vectors read by the stock network, not "
                f"{spaces.observation_space}; leave off --network.normalize-observations, and --variant ars"
            )

    def network_class(self) -> Callable[..., PolicyNetwork]:
        from thespis.networks.evolved import Evolved

        return Evolved

    def build_network(self, spaces: Spaces, seed: int) -> PolicyNetwork:
        from thespis.networks.build import build_network

        return build_network(self.network_class(), self.policy_network, spaces, seed)
