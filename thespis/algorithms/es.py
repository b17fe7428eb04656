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
from thespis.networks.configs import ESNetworkConfig

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class Episodes:
    """Whole episodes of perturbed policies; only their returns and lengths are used."""

    KIND: ClassVar = "returns of episodes"

    cap_factor: NonNegative = 0.0
    """Cut episodes at this multiple of the previous generation's mean length (paper: 2); 0 disables it."""
    longest_episode: Count = 100_000
    """Cut every episode after this many steps."""

    def __post_init__(self) -> None:
        if self.cap_factor and self.cap_factor <= 1.0:
            raise ThespisError(
                f"--cap-factor is {self.cap_factor:g}, so episodes could only get shorter; give more than 1, or 0"
            )


@dataclass(frozen=True)
class ParameterNoise:
    """Gaussian noise on the parameters, constant during an episode."""

    deviation: float

    def describe(self) -> str:
        """See `Exploration`."""
        return f"noise on the parameters: standard deviation {self.deviation:g}"

    def amount(self, steps: int, environments: range, total: int) -> None:
        """None: the perturbed policy explores by itself."""
        return None


@dataclass(frozen=True)
class StepConfig:
    """The optimiser step of a generation."""

    kind: Literal["adam", "sgd"] = "adam"
    """Optimiser: adam (paper) or sgd."""
    learning_rate: NonNegative = 0.01
    """Learning rate at the start of the run (paper: 0.01)."""
    weight_decay: NonNegative = 0.005
    """Weight decay: L2 coefficient in the gradient (paper's code: 0.005)."""
    anneal: bool = False
    """Anneal the learning rate linearly to 0 over the run."""
    epsilon: Positive = 1e-8
    """Epsilon, for adam."""

    @property
    def rule(self) -> OptimizerConfig:
        """The optimiser's settings; constants that have no flag are those of the paper's code."""
        return OptimizerConfig(kind=self.kind, epsilon=self.epsilon, beta2=0.999, momentum=0.0)


@dataclass(frozen=True)
class ARSConfig:
    """Augmented random search (--variant ars): a linear policy on normalised observations."""

    pairs: Count = 8
    """Directions per generation, for --variant ars."""
    top: Count = 8
    """Number of best directions to use, ranked by the better of their two returns, for --variant ars."""
    noise: Positive = 0.03
    """Standard deviation of the perturbations, for --variant ars."""
    step_size: NonNegative = 0.02
    """Learning rate for --variant ars, in standard deviations of the returns used."""
    survival_bonus: float = 0.0
    """Reward per step for staying alive, to subtract before returns are compared, for --variant ars."""

    def __post_init__(self) -> None:
        if self.top > self.pairs >= 1:
            raise ThespisError(f"--ars.top is {self.top}; give at most --ars.pairs")


@dataclass(frozen=True)
class ES(Algorithm[Episodes]):
    """Evolution strategies: parameters move towards perturbations with high returns. No gradient is computed."""

    items: Episodes = inline(Episodes)
    variant: Literal["es", "ars"] = "es"
    """Variant: es (rank-based weights), or ars (augmented random search, Mania et al., 2018; see --ars.*)."""
    pairs: Count = 32
    """Pairs of mirrored perturbations per generation (paper: 5,000 on Humanoid)."""
    noise: Positive = 0.05
    """Standard deviation of the perturbations (paper: 0.02)."""
    network: ESNetworkConfig = field(default_factory=ESNetworkConfig)
    optimizer: StepConfig = field(default_factory=StepConfig)
    ars: ARSConfig = field(default_factory=ARSConfig)

    def __post_init__(self) -> None:
        if self.network.lstm:
            raise ThespisError("evolution strategies support feed-forward networks only; --network.lstm must stay 0")

    @property
    def exploration(self) -> ParameterNoise:
        """Noise on the parameters."""
        return ParameterNoise(self.deviation)

    @property
    def directions(self) -> int:
        """Pairs of mirrored perturbations per generation, for the chosen variant."""
        return self.ars.pairs if self.variant == "ars" else self.pairs

    @property
    def deviation(self) -> float:
        """Standard deviation of the perturbations, for the chosen variant."""
        return self.ars.noise if self.variant == "ars" else self.noise

    @property
    def top(self) -> int | None:
        """Number of best pairs to use; None uses all."""
        return self.ars.top if self.variant == "ars" else None

    @property
    def survival_bonus(self) -> float:
        """Reward per step to subtract before returns are compared."""
        return self.ars.survival_bonus if self.variant == "ars" else 0.0

    @property
    def step(self) -> StepConfig:
        """The optimiser step of the chosen variant."""
        ars = StepConfig(kind="sgd", learning_rate=self.ars.step_size, weight_decay=0.0)
        return ars if self.variant == "ars" else self.optimizer

    @property
    def policy_network(self) -> ESNetworkConfig:
        """The settings of the network to build; ars uses a linear policy on normalised observations."""
        linear = replace(self.network, hidden=(), normalize_observations=True)
        return linear if self.variant == "ars" else self.network

    def validate(self, spaces: Spaces) -> None:
        """Refuse observation normalisation unless the built-in MLP reads the observations."""
        from thespis.networks.batched import reads_vectors

        super().validate(spaces)
        network = self.policy_network
        if network.normalize_observations and not reads_vectors(spaces.observation_space, network):
            raise ThespisError(
                f"normalisation needs plain vectors and the built-in MLP, not observations of "
                f"{spaces.observation_space}; leave off --network.normalize-observations and --variant ars"
            )

    def network_class(self) -> Callable[..., PolicyNetwork]:
        """A policy network without a value head."""
        from thespis.networks.es_policy import ESNetwork

        return ESNetwork

    def build_network(self, spaces: Spaces, seed: int) -> PolicyNetwork:
        """Build the network of the chosen variant."""
        from thespis.networks.build import build_network

        return build_network(self.network_class(), self.policy_network, spaces, seed)
