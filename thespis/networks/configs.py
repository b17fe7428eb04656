"""Settings of the networks that single algorithms have. Loads no torch, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thespis.core.bounds import Count, LayerSize, Positive
from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError


@dataclass(frozen=True)
class DPGNetworkConfig(NetworkConfig):
    """The network that acts, and the critic that values what it does; they share nothing."""

    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the mlps."""
    hidden: tuple[LayerSize, ...] = (256, 256)
    """Layer sizes of the mlp that acts."""
    critic_hidden: tuple[LayerSize, ...] = (256, 256)
    """Layer sizes of the critic's mlp; the first reads the observation, the others its features and the action."""

    def __post_init__(self) -> None:
        if len(self.critic_hidden) < 2:
            raise ThespisError("a critic's first layer does not see the action; give --network.critic-hidden two")


@dataclass(frozen=True)
class EvolvedNetworkConfig(NetworkConfig):
    """The policy that evolution strategies perturb."""

    normalize_observations: bool = False
    """Normalise vector observations by the statistics of all generations before, the same for everybody."""
    virtual_batch_norm: bool = True
    """Normalise images after every convolution by what a fixed batch of random play gives in the perturbed network."""


@dataclass(frozen=True)
class CEMConfig:
    """The search for the best action by the cross-entropy method."""

    samples: Count = 64
    """Actions scored in each iteration (QT-Opt paper: 64); choices alone, if no more than these, are all scored."""
    iterations: Count = 2
    """Times that samples are drawn, scored, and the distribution fitted to the best (paper: 2)."""
    elites: Count = 6
    """How many of the best it is fitted to (paper: 6)."""
    floor: Positive = 0.01
    """Least deviation that is fitted; actions reach from -1 to 1."""

    def __post_init__(self) -> None:
        if self.elites > self.samples >= 1:
            raise ThespisError(
                f"the best {self.elites} of {self.samples} samples cannot be had; raise --network.cem.samples or lower "
                "--network.cem.elites"
            )


@dataclass(frozen=True)
class ScoredNetworkConfig(NetworkConfig):
    """The network of Q(x, a), and how the best action is found with it."""

    hidden: tuple[LayerSize, ...] = (64, 64)
    """Layer sizes of the mlp; the first reads the observation, the others its features and the action."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of the mlp."""
    cem: CEMConfig = field(default_factory=CEMConfig)
