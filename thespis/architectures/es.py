"""Evolution Strategies (Salimans et al., 2017, arXiv:1703.03864): workers try noise and send returns only.

worker xN --returns--> coordinator --parameters, or the returns of all--> worker xN
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from thespis import roles
from thespis.config import EvolvedNetworkConfig, Experiment, resolve
from thespis.errors import ThespisError
from thespis.program import Program

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.members import Members
    from thespis.runtime.context import Context


@dataclass(frozen=True)
class StepConfig:
    """How the parameters follow the weighted noise of a generation."""

    kind: Literal["adam", "sgd"] = "adam"
    """adam (paper) or sgd."""
    learning_rate: float = 0.01
    """Step size (paper)."""
    weight_decay: float = 0.005
    """Share of the parameters that is subtracted in the gradient (paper's code)."""
    anneal: bool = False
    """Let the learning rate fall linearly to 0 at the end of the run."""
    epsilon: float = 1e-8
    """adam: epsilon."""

    decay = momentum = 0.0  # of RMSProp, which is not offered
    beta2 = 0.999  # of Adam, as in the paper's code


@dataclass(frozen=True)
class ARSConfig:
    """--variant ars: augmented random search, with a linear policy on normalised observations."""

    pairs: int = 8
    """Directions per generation."""
    top: int = 8
    """Directions that count, by the better of their two returns."""
    noise: float = 0.03
    """Standard deviation of the perturbations."""
    step_size: float = 0.02
    """Step size, in units of the deviation of the returns that count."""
    survival_bonus: float = 0.0
    """Subtracted from every reward before returns are compared: 1 where staying alive pays 1 a step."""


@dataclass(frozen=True)
class Config(Experiment):
    """Evolution Strategies. `actors` are the workers; each plays --envs-per-actor perturbations side by side."""

    actors: int = field(default_factory=lambda: min(os.cpu_count() or 2, 8))
    """Workers; by default one per core, 8 at most. Their number changes nothing about the parameters."""
    envs_per_actor: int = 16
    """Episodes in a unit of work: half plus, half minus the noise. It divides 2 * --pairs."""
    variant: Literal["es", "ars"] = "es"
    """es: ranks of all returns, Adam. ars: augmented random search (Mania et al., 2018; --ars.*)."""
    protocol: Literal["broadcast", "seeds"] = "broadcast"
    """broadcast: the coordinator sends parameters. seeds: it sends returns, and every worker computes parameters."""
    pairs: int = 32
    """Pairs of mirrored perturbations per generation (paper: 5,000 on Humanoid)."""
    noise: float = 0.05
    """Standard deviation of the perturbations (paper: 0.02)."""
    noise_table: int = 4_194_304
    """Numbers in the table of noise that all read from (paper: 250,000,000)."""
    cap_factor: float = 0.0
    """Cut episodes at this many times the mean length of the generation before (paper: 2); 0 never does."""
    longest_episode: int = 100_000
    """Steps after which an episode is cut off in any case."""
    check_every: int = 10
    """Generations between comparisons of the workers' parameters with the coordinator's, by their SHA-256."""
    repeat_after: float = 3.0
    """Give a unit to a second worker when it is out this many times as long as the slowest before; 0 never does."""
    network: EvolvedNetworkConfig = field(default_factory=EvolvedNetworkConfig)
    optimizer: StepConfig = field(default_factory=StepConfig)
    ars: ARSConfig = field(default_factory=ARSConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pairs", "check_every", "longest_episode"):
            if getattr(self, name) < 1:
                raise ThespisError(f"--{name.replace('_', '-')} is {getattr(self, name)}; give at least 1")
        if self.deviation <= 0.0:
            raise ThespisError(f"noise of deviation {self.deviation:g} tries nothing; give more than 0")
        if self.envs_per_actor % 2 or self.directions < 1 or 2 * self.directions % self.envs_per_actor:
            raise ThespisError(
                f"--envs-per-actor is {self.envs_per_actor}, but a unit is that many of the {2 * self.directions} "
                "episodes of a generation, in pairs; give an even number that divides them"
            )
        if not 1 <= self.ars.top <= self.ars.pairs:
            raise ThespisError(f"--ars.top is {self.ars.top}; give at least 1 and at most --ars.pairs")
        if self.cap_factor and self.cap_factor <= 1.0:
            raise ThespisError(f"--cap-factor is {self.cap_factor:g}, so episodes could only shrink; give more than 1")
        if self.network.lstm:
            raise ThespisError("evolution strategies train feed-forward networks here; --network.lstm must stay 0")

    @property
    def directions(self) -> int:
        """Pairs per generation."""
        return self.ars.pairs if self.variant == "ars" else self.pairs

    @property
    def deviation(self) -> float:
        return self.ars.noise if self.variant == "ars" else self.noise

    @property
    def top(self) -> int | None:
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
        linear = replace(self.network, hidden=(), normalize_observations=True)
        return linear if self.variant == "ars" else self.network

    @property
    def pairs_per_unit(self) -> int:
        return self.envs_per_actor // 2

    @property
    def units(self) -> int:
        """Units of work per generation."""
        return self.directions // self.pairs_per_unit


PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {  # a linear policy will do
        "total_steps": 600_000,
        "noise": 0.1,
        "network": {"hidden": []},
        "optimizer": {"learning_rate": 0.1},
    },
    "Swimmer-v*": {
        "total_steps": 1_200_000,
        "pairs": 8,
        "envs_per_actor": 8,
        "noise": 0.1,
        "network": {"hidden": [32, 32], "normalize_observations": True},
        "optimizer": {"learning_rate": 0.05},
        "eval_episodes": 5,
    },
    "ALE/*": {  # as Such et al. (2017) ran it: 5,000 episodes a generation
        "total_steps": 250_000_000,
        "pairs": 2500,
        "envs_per_actor": 10,
        "noise": 0.005,
        "noise_table": 67_108_864,
        "cap_factor": 2.0,
        "checkpoint_every": 300.0,
        "eval_every": 600.0,
        "stall_timeout": 3600.0,
    },
}


def refuse(cfg: Config, spaces: Spaces) -> None:
    """Say no to what cannot be normalised, or has too little noise, before anything starts."""
    from thespis.algorithms.evolution import check_table
    from thespis.networks.members import count_parameters, layer_sizes, reads_vectors

    network = cfg.policy_network
    if reads_vectors(spaces.observation_space, network):
        check_table(cfg.noise_table, count_parameters(layer_sizes(spaces, network)))
    elif network.normalize_observations:
        raise ThespisError(
            f"observations are normalised where they are plain vectors read by the stock network, not "
            f"{spaces.observation_space}; leave off --network.normalize-observations, and --variant ars"
        )


def build_coordinator(ctx: Context, cfg: Config) -> roles.Coordinator:
    import torch

    from thespis.algorithms.evolution import check_table
    from thespis.architectures.parts import network
    from thespis.envs.make import describe
    from thespis.exchange.noise import NoiseTable
    from thespis.networks.evolved import EvolvedPolicy
    from thespis.networks.members import layer_sizes
    from thespis.networks.moments import Moments

    torch.set_num_threads(1)  # it computes now and then, the workers all the time
    spaces = describe(resolve(cfg.env))
    made = network(cfg.policy_network, spaces, cfg.seed)
    policy = EvolvedPolicy(made, reference(ctx, cfg, made))
    check_table(cfg.noise_table, len(policy.values))
    inputs, *_ = layer_sizes(spaces, cfg.policy_network)
    moments = Moments.none(inputs) if cfg.policy_network.normalize_observations else None
    return roles.Coordinator(ctx, cfg, policy, NoiseTable(cfg.noise_table, cfg.seed), moments)


def build_worker(ctx: Context, cfg: Config, order: Any) -> roles.EvolutionWorker:
    from thespis.envs.make import make

    envs = make(resolve(cfg.env), cfg.envs_per_actor, on_env=ctx.locate)
    return roles.EvolutionWorker(ctx, cfg, envs, build_members(ctx, cfg), order)


def build_members(ctx: Context, cfg: Config) -> Members:
    """Numpy where the policy is an MLP, so that a worker need not load torch; else one network per member."""
    from thespis.envs.make import describe
    from thespis.networks.members import MLPMembers, reads_vectors

    spaces = describe(resolve(cfg.env))
    if reads_vectors(spaces.observation_space, cfg.policy_network):
        return MLPMembers(cfg.envs_per_actor, spaces, cfg.policy_network)
    import torch

    from thespis.architectures.parts import network
    from thespis.networks.evolved import TorchMembers

    torch.set_num_threads(1)
    made = network(cfg.policy_network, spaces, seed=0)
    return TorchMembers(
        cfg.envs_per_actor, lambda: network(cfg.policy_network, spaces, seed=0), reference(ctx, cfg, made)
    )


def reference(ctx: Context, cfg: Config, made: Any) -> Any:
    """The batch that everybody's virtual batch normalisation reads, if the network has any."""
    from thespis.architectures.parts import environments
    from thespis.envs.reference import reference_batch
    from thespis.networks.evolved import reference_needed

    if not reference_needed(made):
        return None
    envs = environments(ctx, cfg, cfg.envs_per_actor)
    try:
        return reference_batch(envs, cfg.seed)
    finally:
        envs.close()


def build_evaluator(ctx: Context, cfg: Config, pull: Any) -> roles.Evaluator:
    from thespis.architectures.parts import environments, local_policy

    return roles.Evaluator(
        ctx,
        make_envs=lambda number: environments(ctx, cfg, number),
        make_policy=lambda: local_policy(ctx, replace(cfg, network=cfg.policy_network), pull),
        episodes=cfg.eval_episodes,
        every=cfg.eval_every,
    )


def program(cfg: Config) -> Program:
    p = Program("es")
    if cfg.actors > cfg.units:
        p.notes.append(f"a generation has {cfg.units} units of work, so {cfg.actors - cfg.units} workers will be idle")
    coordinator = p.add("coordinator", build_coordinator, cfg, near="coordinator", restarts=3)
    for _ in range(cfg.actors):
        p.add("worker", build_worker, cfg, coordinator.edge("order"), actor=True, restarts=3)
    if cfg.eval_episodes:
        p.add("evaluator", build_evaluator, cfg, coordinator.edge("pull"), near="coordinator", cpus=0, restarts=3)
    return p
