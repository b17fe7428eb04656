"""PPO (Schulman et al., 2017, arXiv:1707.06347): several epochs on each batch, with a clipped policy change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Count, Fraction, NonNegative, Positive
from thespis.core.config import OptimizerConfig, RewardConfig, Rounds
from thespis.core.errors import ThespisError
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.networks.policies import PolicyNetwork


@dataclass(frozen=True)
class PPO(Algorithm[Rounds]):
    """Proximal policy optimisation: the clipped surrogate objective with generalised advantage estimation."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("epochs", "minibatches", "target_kl")
    DIVISIBLE: ClassVar[bool] = True
    SHARDABLE: ClassVar = True

    items: Rounds = inline(Rounds)
    discount: Fraction = 0.99
    """Discount factor (gamma) (paper: 0.99)."""
    epochs: Count = 10
    """Epochs over each batch (paper: 10 on MuJoCo, 3 on Atari)."""
    minibatches: Count = 4
    """Minibatches per epoch, one gradient step each."""
    clip: Positive = 0.2
    """Clip range of the probability ratio (paper: 0.2)."""
    value_clip: NonNegative = 0.0
    """Clip range of the value change; 0 does not clip (OpenAI Baselines: same as --clip)."""
    target_kl: Positive | None = None
    """Stop the epochs of a batch once the KL divergence to the behaviour policy exceeds this, in nats."""
    gae_lambda: Fraction = 0.95
    """Lambda of generalised advantage estimation (GAE): 0 for one-step TD errors, 1 for full returns (paper: 0.95)."""
    entropy_cost: NonNegative = 0.0
    """Weight of the entropy bonus (paper: 0 on MuJoCo, 0.01 on Atari)."""
    value_cost: NonNegative = 0.5
    """Weight of the value loss."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, anneal=True, epsilon=1e-5, clip=0.5)
    )

    @property
    def indivisible(self) -> str:
        """See `Algorithm`."""
        return "" if self.target_kl is None else "--target-kl stops at the KL divergence of the whole batch"

    def check_batch(self, environments: int) -> None:
        """Refuse more minibatches than a batch has rows."""
        rows = environments * (1 if self.network.lstm else self.items.unroll_length)
        if rows < self.minibatches:
            what = "environments, which a recurrent network cannot divide" if self.network.lstm else "steps"
            raise ThespisError(f"--minibatches is {self.minibatches}, but a batch has only {rows} {what}; give fewer")

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The PPO update."""
        from thespis.algorithms.updates.ppo import PPOUpdate

        return PPOUpdate(network, self, rng)
