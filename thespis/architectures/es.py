"""Evolution Strategies (Salimans et al., 2017, arXiv:1703.03864): workers try noise and send returns only.

worker xN --returns--> coordinator --parameters, or the returns of all--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from thespis import roles
from thespis.algorithms.base import chosen
from thespis.algorithms.es import ES
from thespis.architectures.builders import build_evaluator, environments, worker_network
from thespis.core.bounds import Count, NonNegative
from thespis.core.config import Experiment
from thespis.core.errors import ThespisError
from thespis.core.program import Program
from thespis.core.system.cores import available_cores

if TYPE_CHECKING:
    from thespis.core.context import Context
    from thespis.core.edges import PlaceOrder
    from thespis.core.types import Tree
    from thespis.envs.spaces import Spaces
    from thespis.networks.members import Members
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.coordinator import Ask, Order, Result, WorkPlan


@dataclass(frozen=True)
class Config(Experiment):
    """Evolution Strategies. `actors` are the workers; each plays --envs-per-actor perturbations side by side."""

    actors: int = field(default_factory=lambda: min(available_cores(), 8))
    """Workers; by default one per core, 8 at most. Their number changes nothing about the parameters."""
    envs_per_actor: int = 16
    """Episodes in a unit of work: half plus, half minus the noise. It divides 2 * --pairs."""
    protocol: Literal["broadcast", "seeds"] = "broadcast"
    """broadcast: the coordinator sends parameters. seeds: it sends returns, and every worker computes parameters."""
    noise_table: Count = 4_194_304
    """Numbers in the table of noise that all read from (paper: 250,000,000)."""
    check_every: Count = 10
    """Generations between comparisons of the workers' parameters with the coordinator's, by their SHA-256."""
    repeat_after: NonNegative = 3.0
    """Give a unit to a second worker when it is out this many times as long as the slowest before; 0 never does."""
    algorithm: ES = chosen(ES)

    def __post_init__(self) -> None:
        super().__post_init__()
        episodes = 2 * self.algorithm.directions
        if self.envs_per_actor % 2 or episodes % self.envs_per_actor:
            raise ThespisError(
                f"--envs-per-actor is {self.envs_per_actor}, but a unit is that many of the {episodes} episodes of a "
                "generation, in pairs; give an even number that divides them"
            )

    @property
    def units(self) -> int:
        """Units of work per generation."""
        return 2 * self.algorithm.directions // self.envs_per_actor

    @property
    def plan(self) -> WorkPlan:
        from thespis.roles.coordinator import WorkPlan

        return WorkPlan(self.units, self.envs_per_actor // 2, self.protocol, self.check_every, self.repeat_after)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse too little noise for the network, where its size is known before anything starts."""
    from thespis.algorithms.updates.evolution import check_table
    from thespis.networks.members import count_parameters, layer_sizes, reads_vectors

    network = cfg.algorithm.policy_network
    if reads_vectors(spaces.observation_space, network):
        check_table(cfg.noise_table, count_parameters(layer_sizes(spaces, network)))


def build_coordinator(ctx: Context, cfg: Config) -> roles.Coordinator:
    from thespis.algorithms.updates.evolution import check_table
    from thespis.exchange.noise import NoiseTable
    from thespis.networks.evolved import EvolvedPolicy, moments_of
    from thespis.networks.members import layer_sizes
    from thespis.networks.moments import Moments
    from thespis.runs.spaces import spaces_of

    network = worker_network(ctx, cfg)
    policy = EvolvedPolicy(network, reference(ctx, cfg, network))
    check_table(cfg.noise_table, len(policy.values))
    moments, settings = moments_of(network), cfg.algorithm.policy_network
    if moments is None and settings.normalize_observations:
        inputs, *_ = layer_sizes(spaces_of(cfg), settings)
        moments = Moments.none(inputs)
    table = NoiseTable(cfg.noise_table, ctx.identity.run_seed)
    return roles.Coordinator(ctx, cfg.algorithm, cfg.plan, cfg.budget, policy, table, moments)


def build_worker(ctx: Context, cfg: Config, order: PlaceOrder[Ask, Result, Order]) -> roles.EvolutionWorker:
    envs = environments(ctx, cfg, cfg.envs_per_actor)
    return roles.EvolutionWorker(ctx, cfg.algorithm, cfg.plan, envs, build_members(ctx, cfg), order)


def build_members(ctx: Context, cfg: Config) -> Members:
    """Numpy where the policy is an MLP, so that a worker need not load torch; else one network per member."""
    from thespis.networks.members import MLPMembers, reads_vectors
    from thespis.runs.spaces import spaces_of

    spaces, settings = spaces_of(cfg), cfg.algorithm.policy_network
    if reads_vectors(spaces.observation_space, settings):
        return MLPMembers(cfg.envs_per_actor, spaces, settings)
    import torch

    from thespis.networks.evolved import TorchMembers

    torch.set_num_threads(1)

    def build() -> PolicyNetwork:
        return cfg.algorithm.build_network(spaces, seed=0)

    return TorchMembers(cfg.envs_per_actor, build, reference(ctx, cfg, build()))


def reference(ctx: Context, cfg: Config, network: PolicyNetwork) -> Tree | None:
    """The batch that everybody's virtual batch normalisation reads, if the network has any."""
    from thespis.envs.reference import reference_batch
    from thespis.networks.evolved import reference_needed

    if not reference_needed(network):
        return None
    envs = environments(ctx, cfg, cfg.envs_per_actor)
    try:
        return reference_batch(envs, ctx.identity.run_seed)
    finally:
        envs.close()


def program(cfg: Config) -> Program:
    p = Program("es")
    if cfg.actors > cfg.units:
        p.notes.append(f"a generation has {cfg.units} units of work, so {cfg.actors - cfg.units} workers will be idle")
    coordinator = p.at(colocate="coordinator", restarts=3).add("coordinator", build_coordinator, cfg)
    workers = p.at(counts_as_actor=True, restarts=3)
    for _ in range(cfg.actors):
        workers.add("worker", build_worker, cfg, order=coordinator.edge(roles.Coordinator.order))
    if cfg.eval_episodes:
        beside = p.at(colocate="coordinator", cpus=0, restarts=3)
        beside.add("evaluator", build_evaluator, cfg, pull=coordinator.edge(roles.Coordinator.pull))
    return p
