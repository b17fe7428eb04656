"""PPO (Schulman et al., 2017, arXiv:1707.06347): all actors act on one version, the learner takes several epochs of it.

actor xN --unroll--> queue --N of one version--> learner --weights--> store --next version--> actor xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thespis import roles
from thespis.architectures.evaluating import add_evaluator
from thespis.config import Experiment, NetworkConfig, OptimizerConfig, RewardConfig
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class Proximal:
    """How one batch is learned from several times."""

    epochs: int = 10
    """Passes over each batch (paper: 10 on MuJoCo, 3 on Atari)."""
    minibatches: int = 4
    """Gradient steps per pass; each row is in one of them."""
    clip: float = 0.2
    """How far the probability of an action may move, as a share of what it was (paper)."""
    value_clip: float = 0.0
    """How far a value may move; 0 for as far as it wants (OpenAI Baselines: as far as --clip)."""
    target_kl: float | None = None
    """Make no further step on a batch once the policy is this far, in nats, from the one that acted."""
    gae_lambda: float = 0.95
    """Lambda of the advantages: 0 trusts the values, 1 the rewards (paper)."""

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ThespisError(f"--{name} is {getattr(self, name)}; give at least 1")
        if not self.clip > 0 or self.value_clip < 0:
            raise ThespisError("--clip must be more than 0, and --value-clip cannot be negative")


@dataclass(frozen=True)
class Config(Proximal, Experiment):
    """PPO. The defaults are for small control tasks; Atari ids take the settings of the paper's table 5."""

    actors: int = 2
    """How many actors step environments, all on the same version of the weights."""
    envs_per_actor: int = 8
    """Environments each actor steps side by side."""
    unroll_length: int = 32
    """Steps of each environment per update (paper: 2048 on MuJoCo, 128 on Atari)."""
    backups: int = 0
    """Actors that an update does not wait for; what the last ones bring is late and dropped."""
    discount: float = 0.99
    """Discount factor (paper)."""
    entropy_cost: float = 0.0
    """Weight of the entropy bonus (paper: 0 on MuJoCo, 0.01 on Atari)."""
    value_cost: float = 0.5
    """Weight of the value loss."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-3, anneal=True, epsilon=1e-5, clip=0.5)
    )

    def __post_init__(self) -> None:
        Experiment.__post_init__(self)
        Proximal.__post_init__(self)
        if self.unroll_length < 1:
            raise ThespisError(f"--unroll-length is {self.unroll_length}; give at least 1")
        if not 0 <= self.backups < self.actors:
            raise ThespisError(
                f"--backups is {self.backups} of {self.actors} actors; an update must wait for at least one of them"
            )
        rows = self.quorum * self.envs_per_actor * (1 if self.network.lstm else self.unroll_length)
        if rows < self.minibatches:
            what = "environments, which a recurrent network cannot divide" if self.network.lstm else "steps"
            raise ThespisError(f"--minibatches is {self.minibatches}, but a batch has only {rows} {what}; give fewer")

    @property
    def quorum(self) -> int:
        """Unrolls per update."""
        return self.actors - self.backups


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {  # twice what it takes; the learning rate anneals over it
        "total_steps": 250_000,
        "epochs": 8,
        "minibatches": 2,
        "discount": 0.98,
        "gae_lambda": 0.8,
        "reward": {"kind": "scale", "scale": 0.1},
    },
    "Pendulum-v1": {
        "total_steps": 300_000,
        "unroll_length": 64,
        "minibatches": 8,
        "discount": 0.95,
        "reward": {"normalize": True},
    },
    "ALE/*": {  # table 5, whose eight actors have one environment each
        "total_steps": 10_000_000,
        "actors": 2,
        "envs_per_actor": 4,
        "unroll_length": 128,
        "epochs": 3,
        "clip": 0.1,
        "entropy_cost": 0.01,
        "value_cost": 0.5,
        "reward": {"kind": "sign"},
        "optimizer": {"learning_rate": 2.5e-4},
        "checkpoint_every": 300.0,
        "eval_every": 600.0,
    },
}


def build_actor(ctx: Context, cfg: Config, insert: Any, following: Any) -> roles.Actor:
    """`following`: the edge to the next version, so that the actor makes one unroll of each."""
    from thespis.architectures.parts import environments, local_policy

    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return_discount = cfg.discount if cfg.reward.normalize else None
    return roles.Actor(ctx, envs, local_policy(ctx, cfg, following), insert, cfg.unroll_length, return_discount)


def build_learner(ctx: Context, cfg: Config, sample: Any, publish: Any) -> roles.Learner:
    from thespis.algorithms.ppo import PPOUpdate
    from thespis.architectures.parts import learner_network
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Rounds

    update = PPOUpdate(learner_network(ctx, cfg, in_turns=True), cfg, ctx.rng("minibatches"))
    exchange = LocalExchange(ctx, cfg.optimizer, update.parameters)
    source = Rounds(ctx, sample, cfg.quorum, lambda: learner.version)
    learner = roles.Learner(ctx, source, update, exchange, publish, cfg.budget, divide=update.minibatches)
    return learner


def program(cfg: Config) -> Program:
    p = Program("ppo")
    # In one process, so that they fail together: an actor that has handed its unroll over waits for a version which
    # only comes of that unroll, or of a learner that starts again.
    place: dict[str, Any] = {"process": "hub", "near": "learner", "restarts": 3}
    queue = p.add("queue", roles.Replay.queue, capacity=cfg.actors, **place)
    weights = p.add("weights", roles.WeightStore, **place)
    sample = queue.edge("sample", items=cfg.quorum, of_one_version=True)
    p.add("learner", build_learner, cfg, sample, weights.edge("publish"), **place)
    for _ in range(cfg.actors):
        p.add("actor", build_actor, cfg, queue.edge("insert"), weights.edge("next"), actor=True, restarts=3)
    add_evaluator(p, cfg, weights)
    return p
