"""TRPO (Schulman et al., 2015, arXiv:1502.05477): the longest natural-gradient step within a bound on the KL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from thespis.algorithms.base import Algorithm, Exploration, Sampled
from thespis.core.bounds import Bounds, Count, Fraction, NonNegative, Positive
from thespis.core.config import NetworkConfig, OptimizerConfig, RewardConfig, Rounds
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.separate import SeparateActorCritic

WHOLE_STEP = OptimizerConfig(kind="sgd", learning_rate=1.0, clip=0.0)
"""Subtracts what the update found as it is: the line search has decided how long the step is."""


@dataclass(frozen=True)
class TRPO(Algorithm[Rounds]):
    """Natural gradient by conjugate gradient, and a line search; policy and value function are separate networks."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("value_epochs", "minibatches", "cg_iterations", "line_search_steps")

    items: Rounds = inline(lambda: Rounds(unroll_length=64))
    discount: Fraction = 0.99
    """Discount factor (paper)."""
    gae_lambda: Fraction = 0.97
    """Lambda of the advantages: 0 trusts the values, 1 the rewards (OpenAI Baselines: 0.98 on MuJoCo)."""
    max_kl: Positive = 0.01
    """How far, in nats, one update may move the policy: the mean of KL(old || new) over the batch (paper)."""
    damping: NonNegative = 0.1
    """Added to the diagonal of the Fisher matrix, which a batch determines only in part (OpenAI Baselines)."""
    cg_iterations: Count = 10
    """Iterations of conjugate gradient (paper)."""
    line_search_steps: Count = 10
    """Steps that are tried, each shorter, before the policy is left as it is."""
    backtrack: Annotated[float, Bounds(above=0, below=1)] = 0.8
    """Length of each step that is tried, as a share of the one before."""
    value_epochs: Count = 5
    """Passes of the value regression over each batch (OpenAI Baselines)."""
    minibatches: Count = 4
    """Gradient steps of the value regression per pass."""
    value_learning_rate: Positive = 1e-3
    """Step size of the value regression, by Adam (OpenAI Baselines)."""
    exploration: Exploration = inline(Sampled)
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(default=WHOLE_STEP, init=False)

    def validate(self, spaces: Spaces) -> None:
        from thespis.networks.separate import SeparateActorCritic

        super().validate(spaces)
        self.check_factory(spaces, SeparateActorCritic, "a network whose policy and value may share parameters")

    def network_class(self) -> type[SeparateActorCritic]:
        from thespis.networks.separate import SeparateActorCritic

        return SeparateActorCritic

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        from thespis.algorithms.updates.trpo import TRPOUpdate

        return TRPOUpdate(network, self, rng)
