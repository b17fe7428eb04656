"""TRPO (Schulman et al., 2015, arXiv:1502.05477): the longest natural-gradient step within a KL bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from thespis.algorithms.base import Algorithm
from thespis.core.bounds import Bounds, Count, Fraction, NonNegative, Positive
from thespis.core.config import OptimizerConfig, RewardConfig, Rounds
from thespis.core.settings import inline

if TYPE_CHECKING:
    import numpy as np

    from thespis.algorithms.updates.update import Update
    from thespis.envs.spaces import Spaces
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.separate import SeparateActorCritic

WHOLE_STEP = OptimizerConfig(kind="sgd", learning_rate=1.0, clip=0.0)
"""Plain SGD with learning rate 1: it applies the step unchanged, because the line search sets its length."""


@dataclass(frozen=True)
class TRPO(Algorithm[Rounds]):
    """Trust-region policy optimisation: conjugate gradient and line search. Policy and value share no parameters."""

    MAY_CHANGE: ClassVar[tuple[str, ...]] = ("value_epochs", "minibatches", "cg_iterations", "line_search_steps")

    items: Rounds = inline(lambda: Rounds(unroll_length=64))
    discount: Fraction = 0.99
    """Discount factor (gamma) (paper: 0.99)."""
    gae_lambda: Fraction = 0.97
    """Lambda of generalised advantage estimation (GAE): 0 for one-step TD errors, 1 for full returns (OpenAI
    Baselines: 0.98 on MuJoCo)."""
    max_kl: Positive = 0.01
    """Trust region: bound on the mean KL divergence of one update, KL(old || new), in nats (paper: 0.01)."""
    damping: NonNegative = 0.1
    """Damping added to the diagonal of the Fisher matrix (OpenAI Baselines: 0.1)."""
    cg_iterations: Count = 10
    """Iterations of conjugate gradient (paper: 10)."""
    line_search_steps: Count = 10
    """Maximum number of line-search steps. If all fail, the policy stays unchanged."""
    backtrack: Annotated[float, Bounds(above=0, below=1)] = 0.8
    """Line-search backtracking factor: each step is this times the previous one."""
    value_epochs: Count = 5
    """Epochs of the value regression over each batch (OpenAI Baselines: 5)."""
    minibatches: Count = 4
    """Minibatches per epoch of the value regression, one gradient step each."""
    value_learning_rate: Positive = 1e-3
    """Learning rate of the value regression, with Adam (OpenAI Baselines: 0.001)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    optimizer: OptimizerConfig = field(default=WHOLE_STEP, init=False)

    def validate(self, spaces: Spaces) -> None:
        """Refuse custom networks that may share parameters between policy and value."""
        from thespis.networks.separate import SeparateActorCritic

        super().validate(spaces)
        self.check_factory(spaces, SeparateActorCritic, "a network whose policy and value may share parameters")

    def network_class(self) -> type[SeparateActorCritic]:
        """Separate policy and value networks."""
        from thespis.networks.separate import SeparateActorCritic

        return SeparateActorCritic

    def build_update(
        self, network: PolicyNetwork, rng: np.random.Generator, count_updates: Callable[[], int] | None = None
    ) -> Update:
        """The TRPO update."""
        from thespis.algorithms.updates.trpo import TRPOUpdate

        return TRPOUpdate(network, self, rng)
