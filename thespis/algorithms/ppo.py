"""PPO (Schulman et al., 2017, arXiv:1707.06347): several epochs on each batch, held near the policy that made it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm, Exploration, Sampled
from thespis.core.bounds import Count, Fraction, NonNegative, Positive
from thespis.core.config import NetworkConfig, OptimizerConfig, RewardConfig, Rounds
from thespis.core.errors import ThespisError
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class PPO(Algorithm[Rounds]):
    """The clipped surrogate objective on generalised advantages."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("epochs", "minibatches", "target_kl")

    items: Rounds = inline(Rounds)
    discount: Fraction = 0.99
    """Discount factor (paper)."""
    epochs: Count = 10
    """Passes over each batch (paper: 10 on MuJoCo, 3 on Atari)."""
    minibatches: Count = 4
    """Gradient steps per pass; each row is in one of them."""
    clip: Positive = 0.2
    """How far the probability of an action may move, as a share of what it was (paper)."""
    value_clip: NonNegative = 0.0
    """How far a value may move; 0 for as far as it wants (OpenAI Baselines: as far as --clip)."""
    target_kl: Positive | None = None
    """Make no further step on a batch once the policy is this far, in nats, from the one that acted."""
    gae_lambda: Fraction = 0.95
    """Lambda of the advantages: 0 trusts the values, 1 the rewards (paper)."""
    entropy_cost: NonNegative = 0.0
    """Weight of the entropy bonus (paper: 0 on MuJoCo, 0.01 on Atari)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss."""
    exploration: Exploration = inline(Sampled)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, anneal=True, epsilon=1e-5, clip=0.5)
    )

    def check_batch(self, environments: int) -> None:
        rows = environments * (1 if self.network.lstm else self.items.unroll_length)
        if rows < self.minibatches:
            what = "environments, which a recurrent network cannot divide" if self.network.lstm else "steps"
            raise ThespisError(f"--minibatches is {self.minibatches}, but a batch has only {rows} {what}; give fewer")

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.ppo import PPOUpdate

        return PPOUpdate(network, self, rng)
