"""Network settings of single algorithms. This module does not import torch, so `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from thespis.core.bounds import Count, LayerSize, Positive
from thespis.core.config import NetworkConfig
from thespis.core.errors import ThespisError


@dataclass(frozen=True)
class DPGNetworkConfig(NetworkConfig):
    """The policy network and the critic; they share no parameters."""

    activation: Literal["tanh", "relu"] = "relu"
    """Activation function of both MLPs."""
    hidden: tuple[LayerSize, ...] = (256, 256)
    """Hidden layer sizes of the policy's MLP."""
    critic_hidden: tuple[LayerSize, ...] = (256, 256)
    """Hidden layer sizes of the critic's MLP, at least two. The action enters at the second layer."""

    def __post_init__(self) -> None:
        self.check_feed_forward()
        if len(self.critic_hidden) < 2:
            raise ThespisError(
                "the action enters the critic at its second layer; give --network.critic-hidden at least two layers"
            )


@dataclass(frozen=True)
class ESNetworkConfig(NetworkConfig):
    """The policy network that evolution strategies perturb."""

    normalize_observations: bool = False
    """Normalise vector observations by the statistics of all earlier generations, the same on every worker."""
    virtual_batch_norm: bool = True
    """Virtual batch normalisation after every convolution; the reference batch comes from random actions."""


@dataclass(frozen=True)
class CEMConfig:
    """Action search by the cross-entropy method (CEM)."""

    samples: Count = 64
    """Actions scored per iteration (paper: 64). A discrete action space of at most this size is scored completely."""
    iterations: Count = 2
    """CEM iterations: draw samples, score them, fit the distribution to the elites (paper: 2)."""
    elites: Count = 6
    """Number of best samples to fit the distribution to (paper: 6)."""
    floor: Positive = 0.01
    """Minimum standard deviation of the fitted distribution; actions range from -1 to 1."""

    def __post_init__(self) -> None:
        if self.elites > self.samples >= 1:
            raise ThespisError(
                f"{self.samples} samples cannot contain {self.elites} elites; raise --network.cem.samples or lower "
                "--network.cem.elites"
            )


@dataclass(frozen=True)
class QFunctionConfig(NetworkConfig):
    """The Q-function network Q(x, a), and the search for its best action."""

    hidden: tuple[LayerSize, ...] = (64, 64)
    """Hidden layer sizes of the MLP, at least two. The action enters at the second layer."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation function of the MLP."""
    cem: CEMConfig = field(default_factory=CEMConfig)
