"""Evolution Strategies (Salimans et al., 2017, arXiv:1703.03864): workers evaluate perturbations and send only returns.

worker xN --returns--> coordinator --parameters, or the returns of all--> worker xN
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from thespis import roles
from thespis.algorithms import chosen
from thespis.algorithms.es import ES
from thespis.architectures.builders import add_evaluator
from thespis.architectures.parts.policies import build_environments, build_worker_network
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
    from thespis.networks.batched import BatchedPolicy
    from thespis.networks.policies import PolicyNetwork
    from thespis.roles.coordinator import UnitOrder, UnitRequest, UnitResult, WorkPlan


@dataclass(frozen=True)
class Config(Experiment):
    """Evolution strategies. Workers evaluate perturbed policies, --envs-per-actor at a time."""

    actors: int = field(default_factory=lambda: min(available_cores(), 8))
    """Number of worker processes; by default one per core, at most 8. It does not affect the result."""
    envs_per_actor: int = 16
    """Episodes per unit of work, half with positive and half with negative noise. It must divide 2 * --pairs."""
    protocol: Literal["broadcast", "seeds"] = "broadcast"
    """Protocol: broadcast (the coordinator sends parameters), or seeds (it sends all returns, and every worker computes
    the parameters)."""
    noise_table: Count = 4_194_304
    """Size of the shared noise table, in numbers (paper: 250,000,000)."""
    check_every: Count = 10
    """Compare the workers' parameters with the coordinator's by SHA-256 every N generations."""
    repeat_after: NonNegative = 3.0
    """Send a unit of work to a second worker after N times the longest duration of recent units; 0 disables this."""
    algorithm: ES = chosen(ES)

    def __post_init__(self) -> None:
        super().__post_init__()
        episodes = 2 * self.algorithm.directions
        if self.envs_per_actor % 2 or episodes % self.envs_per_actor:
            raise ThespisError(
                f"--envs-per-actor is {self.envs_per_actor}, but units split the {episodes} episodes of a generation "
                "evenly, in pairs; give an even number that divides them"
            )

    @property
    def units(self) -> int:
        """Units of work per generation."""
        return 2 * self.algorithm.directions // self.envs_per_actor

    @property
    def plan(self) -> WorkPlan:
        """The division of a generation into units of work."""
        from thespis.roles.coordinator import WorkPlan

        return WorkPlan(self.units, self.envs_per_actor // 2, self.protocol, self.check_every, self.repeat_after)


def validate(cfg: Config, spaces: Spaces) -> None:
    """Refuse a noise table that is too small, if the network's size is known before the run starts."""
    from thespis.algorithms.updates.evolution import check_table
    from thespis.networks.batched import count_parameters, layer_sizes, reads_vectors

    network = cfg.algorithm.policy_network
    if reads_vectors(spaces.observation_space, network):
        check_table(cfg.noise_table, count_parameters(layer_sizes(spaces, network)))


def build_coordinator(ctx: Context, cfg: Config) -> roles.Coordinator:
    """The coordinator, which owns the parameters."""
    from thespis.algorithms.updates.evolution import check_table
    from thespis.exchange.noise import NoiseTable
    from thespis.networks.batched import layer_sizes
    from thespis.networks.es_policy import ESPolicy, moments_of
    from thespis.networks.running_moments import Moments
    from thespis.runs.spaces import spaces_of

    network = build_worker_network(ctx, cfg)
    policy = ESPolicy(network, build_reference(ctx, cfg, network))
    check_table(cfg.noise_table, len(policy.values))
    moments, settings = moments_of(network), cfg.algorithm.policy_network
    if moments is None and settings.normalize_observations:
        inputs, *_ = layer_sizes(spaces_of(cfg), settings)
        moments = Moments.empty(inputs)
    table = NoiseTable(cfg.noise_table, ctx.identity.run_seed)
    return roles.Coordinator(ctx, cfg.algorithm, cfg.plan, cfg.budget, policy, table, moments)


def build_worker(
    ctx: Context, cfg: Config, order: PlaceOrder[UnitRequest, UnitResult, UnitOrder]
) -> roles.EvolutionWorker:
    """A worker, which evaluates perturbed policies."""
    envs = build_environments(ctx, cfg, cfg.envs_per_actor)
    return roles.EvolutionWorker(ctx, cfg.algorithm, cfg.plan, envs, build_batched_policy(ctx, cfg), order)


def build_batched_policy(ctx: Context, cfg: Config) -> BatchedPolicy:
    """One policy per environment: numpy for an MLP, so that the worker need not import torch, else torch networks."""
    from thespis.networks.batched import BatchedMLP, reads_vectors
    from thespis.runs.spaces import spaces_of

    spaces, settings = spaces_of(cfg), cfg.algorithm.policy_network
    if reads_vectors(spaces.observation_space, settings):
        return BatchedMLP(cfg.envs_per_actor, spaces, settings)
    import torch

    from thespis.networks.es_policy import BatchedTorchPolicy

    torch.set_num_threads(1)

    def build() -> PolicyNetwork:
        return cfg.algorithm.build_network(spaces, seed=0)

    return BatchedTorchPolicy(cfg.envs_per_actor, build, build_reference(ctx, cfg, build()))


def build_reference(ctx: Context, cfg: Config, network: PolicyNetwork) -> Tree | None:
    """The reference batch of virtual batch normalisation, the same for all roles; None if the network needs none."""
    from thespis.envs.reference import reference_batch
    from thespis.networks.es_policy import reference_needed

    if not reference_needed(network):
        return None
    envs = build_environments(ctx, cfg, cfg.envs_per_actor)
    try:
        return reference_batch(envs, ctx.identity.run_seed)
    finally:
        envs.close()


def program(cfg: Config) -> Program:
    """Wire the figure above."""
    p = Program("es")
    if cfg.actors > cfg.units:
        p.notes.append(f"a generation has {cfg.units} units of work, so {cfg.actors - cfg.units} workers will be idle")
    coordinator = p.at(colocate="coordinator", restarts=3).add("coordinator", build_coordinator, cfg)
    workers = p.at(counts_as_actor=True, restarts=3)
    for _ in range(cfg.actors):
        workers.add("worker", build_worker, cfg, order=coordinator.edge(roles.Coordinator.order))
    add_evaluator(p, cfg, coordinator.edge(roles.Coordinator.pull), colocate="coordinator")
    return p
