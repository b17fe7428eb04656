"""Environments, networks and policies, as all roles that act or learn build them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thespis import roles

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.core.context import Context
    from thespis.core.edges import PullForActing
    from thespis.envs.autoreset import Environments
    from thespis.networks.policies import PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner


def build_environments(ctx: Context, cfg: Experiment, number: int, first: int = 0) -> Environments:
    """Build `number` environments. They report env, episode and step to the runtime, so that it can name a hang.

    `first`: the index of the first of them within the role.
    """
    from thespis.envs.make import make_envs

    locate = ctx.locate
    made = make_envs(cfg.env_config, number, on_env=lambda env, episode, step: locate(first + env, episode, step))
    made.track(cfg.track_info)
    return made


def new_policy_runner(ctx: Context, cfg: Experiment) -> PolicyRunner:
    """The algorithm's policy runner on a network whose weights are to be replaced."""
    from thespis.runs.spaces import spaces_of

    network: PolicyNetwork = cfg.learned.build_network(spaces_of(cfg), seed=0)
    runner: PolicyRunner = cfg.learned.build_policy_runner(network, ctx.rng("policy"))
    return runner


def build_policy_runner(ctx: Context, cfg: Experiment) -> PolicyRunner:
    """Build the algorithm's network and policy runner, on one torch thread because actors share the machine."""
    import torch

    torch.set_num_threads(1)
    return new_policy_runner(ctx, cfg)


def build_local_policy(ctx: Context, cfg: Experiment, pull: PullForActing, ahead: bool = False) -> roles.LocalPolicy:
    """A policy in the actor's process that pulls weights. `ahead`: see `LocalPolicy`."""
    return roles.LocalPolicy(ctx, build_policy_runner(ctx, cfg), pull, ahead)


def build_worker_network(ctx: Context, cfg: Experiment) -> PolicyNetwork:
    """The network of one worker, on one torch thread. All workers start from the same weights.

    With `--init-from` the initial weights come from another run.
    """
    import torch

    from thespis.runs.initial_weights import read_initial_weights
    from thespis.runs.spaces import spaces_of

    torch.set_num_threads(1)
    made: PolicyNetwork = cfg.algorithm.build_network(spaces_of(cfg), ctx.identity.run_seed)
    for name, value in read_initial_weights(cfg).items():
        made.state_dict()[name].copy_(torch.from_numpy(value))
    return made
