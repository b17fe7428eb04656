"""Ape-X DPG (Horgan et al., 2018, arXiv:1803.00933): continuous control, learned from what surprised many actors.

actor xN --unroll--> replay --by priority--> learner --policy, critic--> store --pull--> actor xN
                     replay <--priorities--- learner
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.values import at_least_one, value_program
from thespis.config import DPGNetworkConfig, Experiment, OptimizerConfig, ReplayConfig, RewardConfig, Spec
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.runtime.context import Context
    from thespis.types import Array


@dataclass(frozen=True)
class Config(Experiment):
    """Ape-X DPG. The defaults are for small control tasks; the paper's own are told with each setting."""

    env: Spec = "Pendulum-v1"
    """Gymnasium id, verbatim (Pendulum-v1, module:EnvId-v0), or file.py::function that makes one."""
    actors: int = 1
    """How many actors step environments (paper: 64)."""
    envs_per_actor: int = 4
    """Environments each actor steps side by side, each with noise of its own (paper: 1)."""
    noise: float = 0.4
    """Deviation of the noise on the actions of the environment that explores most; actions reach from -1 to 1."""
    least_noise: float = 0.05
    """That of the one that explores least; from one to the other it falls by equal factors (paper: 0.3 for all)."""
    unroll_length: int = 4
    """Steps per unroll: an actor sends them, and takes newer weights, this often."""
    batch: int = 128
    """Transitions per gradient (paper: 256)."""
    batches_per_draw: int = 4
    """Batches that one call to the replay brings."""
    publish_every: int = 4
    """Updates between weights that actors can see."""
    n_step: int = 3
    """Rewards summed before bootstrapping (paper: 5)."""
    discount: float = 0.99
    """Discount factor."""
    target_period: int = 100
    """Updates between copies of actor and critic to their targets (paper)."""
    slope_clip: float = 1.0
    """Bound of every element of dQ/da, with which the actor learns (paper)."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    replay: ReplayConfig = field(
        default_factory=lambda: ReplayConfig(priority_exponent=0.6, importance_exponent=0.4, actor_priorities=True)
    )
    network: DPGNetworkConfig = field(default_factory=DPGNetworkConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "unroll_length", "batch", "batches_per_draw", "publish_every", "n_step", "target_period")
        if not 0.0 < self.least_noise <= self.noise:
            raise ThespisError("--noise is the most and --least-noise the least of it; give them in order, above 0")
        if self.network.lstm:
            raise ThespisError("single transitions are learned from here, so --network.lstm must stay 0")
        if len(self.network.critic_hidden) < 2:
            raise ThespisError("the critic's first layer does not see the action; give --network.critic-hidden two")
        if self.reward.normalize:
            raise ThespisError(
                "rewards stay in the replay as they were stored, so --reward.normalize cannot be; scale them"
            )

    @property
    def insert_items(self) -> int:
        """The most transitions that one unroll completes: its own, and those that were waiting for it."""
        waiting = self.n_step + (1 if self.replay.actor_priorities else 0)
        return self.envs_per_actor * (self.unroll_length + waiting)

    @property
    def sample_items(self) -> int:
        return self.batch * self.batches_per_draw

    def ladder(self, actor: int) -> Array:
        """Deviations of the noise of one actor's environments; together the actors have the whole ladder."""
        import numpy as np

        number = self.actors * self.envs_per_actor
        places = np.arange(actor * self.envs_per_actor, (actor + 1) * self.envs_per_actor)
        return np.asarray(self.noise * (self.least_noise / self.noise) ** (places / max(1, number - 1)))


PRESETS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {  # an update every two steps; half as long again as the slowest of six seeds took
        "total_steps": 12_000,
        "discount": 0.98,
        "replay": {"samples_per_insert": 64.0},
        "reward": {"kind": "scale", "scale": 0.1},
        "optimizer": {"anneal": True},
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be learned or stored, before anything starts."""
    from thespis.architectures.parts import network
    from thespis.experience.tables import affordable, row_layout
    from thespis.networks.dpg import DPGNetwork, bounded

    bounded(spaces.action_space)
    if cfg.network.factory and not isinstance(network(cfg.network, spaces, seed=0), DPGNetwork):
        raise ThespisError(f"{cfg.network.factory!r} makes a network without a critic; extend networks.dpg.DPGNetwork")
    affordable(cfg.replay, row_layout(spaces, cfg.replay), cfg.replay.capacity)


def build_actor(ctx: Context, cfg: Config, insert: Any, pull: Any) -> roles.Actor:
    from thespis.architectures.parts import environments, worker_network
    from thespis.experience.sources import Streamed
    from thespis.networks.dpg import DPGNetwork, ValuingStepper

    made = worker_network(ctx, cfg)
    assert isinstance(made, DPGNetwork)
    stepper = ValuingStepper(made, ctx.rng("policy"), cfg.ladder(ctx.identity.index))
    envs, policy = environments(ctx, cfg, cfg.envs_per_actor), roles.LocalPolicy(ctx, stepper, pull)
    return roles.Actor(ctx, envs, policy, Streamed(ctx, insert), cfg.unroll_length)


def build_learner(ctx: Context, cfg: Config, sample: Any, prioritise: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.dpg import DPGUpdate
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Draws
    from thespis.networks.dpg import DPGNetwork

    made = learner_network(ctx, cfg)
    assert isinstance(made, DPGNetwork)
    update = DPGUpdate(made, cfg)
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    source = Draws(ctx, sample, cfg.batch, cfg.batches_per_draw, prioritise)
    return roles.Learner(ctx, source, update, exchange, publish, cfg.budget, cfg.publish_every)


def program(cfg: Config) -> Program:
    return value_program("apex-dpg", cfg, build_actor, build_learner=build_learner)
