"""Thespis: classic distributed reinforcement-learning architectures to run, read and compare.

`__all__` lists the public API: runs, and the parts of custom architectures, algorithms, networks and roles. Every other
name may change without notice.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thespis.core.lazy import lazy_names

if TYPE_CHECKING:
    from thespis import roles
    from thespis._train import train
    from thespis.algorithms import chosen
    from thespis.algorithms.appo import APPO
    from thespis.algorithms.base import Algorithm, Exploration, Sampled
    from thespis.algorithms.dpg import DPG, NoiseLadder
    from thespis.algorithms.dqn import DQN, EpsilonLadder, EpsilonSchedule
    from thespis.algorithms.es import ES, Episodes
    from thespis.algorithms.ppo import PPO
    from thespis.algorithms.qtopt import Examples, QTOpt
    from thespis.algorithms.r2d2 import R2D2
    from thespis.algorithms.sac import SAC
    from thespis.algorithms.trpo import TRPO
    from thespis.algorithms.updates.policy_gradient import PolicyUpdate
    from thespis.algorithms.updates.update import Gradients, Update
    from thespis.algorithms.vtrace import VTrace
    from thespis.architectures.builders import add_evaluator, add_replay, validate_replay
    from thespis.architectures.parts.actors import build_exploring_actor, build_replay_actor, return_discount
    from thespis.architectures.parts.learners import (
        build_central_learner,
        build_learner_network,
        build_queue_learner,
        build_replay_learner,
    )
    from thespis.architectures.parts.policies import (
        build_environments,
        build_local_policy,
        build_policy_runner,
        build_worker_network,
    )
    from thespis.core import edges
    from thespis.core.bounds import Bounds, Count, CountOrZero, Fraction, NonNegative, Positive
    from thespis.core.config import (
        Experiment,
        NetworkConfig,
        OptimizerConfig,
        QNetworkConfig,
        ReplayConfig,
        RewardConfig,
        Rounds,
        Sequences,
        Transitions,
        Unrolls,
    )
    from thespis.core.context import Context
    from thespis.core.errors import NonFiniteLoss, ThespisError
    from thespis.core.program import Edge, Handle, Placement, Program
    from thespis.core.service import Method, RoleDescription
    from thespis.core.settings import inline
    from thespis.core.types import Unroll, VersionedWeights
    from thespis.envs.spaces import Spaces
    from thespis.exchange.local import LocalExchange
    from thespis.exchange.scheduled_optimizer import ScheduledOptimizer
    from thespis.experience.sources import QueueSource, ReplaySource
    from thespis.networks.configs import CEMConfig, DPGNetworkConfig, ESNetworkConfig, QFunctionConfig
    from thespis.networks.encoder import Encoder
    from thespis.networks.heads import Distribution, build_distribution
    from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors, tensor_inputs
    from thespis.networks.policies import ActorCritic, Agent, NetworkOutput, PolicyNetwork
    from thespis.networks.policy_runner import PolicyRunner
    from thespis.networks.q import QNetwork
    from thespis.networks.torso import MLP
    from thespis.training.callbacks import Callback
    from thespis.training.resume import resume
    from thespis.training.trained_run import TrainedRun, load

__all__ = [
    "APPO",
    "DPG",
    "DQN",
    "ES",
    "MLP",
    "PPO",
    "R2D2",
    "SAC",
    "TRPO",
    "ActorCritic",
    "Agent",
    "Algorithm",
    "Bounds",
    "CEMConfig",
    "Callback",
    "Context",
    "Count",
    "CountOrZero",
    "DPGNetworkConfig",
    "Distribution",
    "ESNetworkConfig",
    "Edge",
    "Encoder",
    "Episodes",
    "EpsilonLadder",
    "EpsilonSchedule",
    "Examples",
    "Experiment",
    "Exploration",
    "Fraction",
    "Gradients",
    "Handle",
    "LocalExchange",
    "Method",
    "NetworkConfig",
    "NetworkOutput",
    "NoiseLadder",
    "NonFiniteLoss",
    "NonNegative",
    "OptimizerConfig",
    "Placement",
    "PolicyNetwork",
    "PolicyRunner",
    "PolicyUpdate",
    "Positive",
    "Program",
    "QFunctionConfig",
    "QNetwork",
    "QNetworkConfig",
    "QTOpt",
    "QueueSource",
    "ReplayConfig",
    "ReplaySource",
    "RewardConfig",
    "RoleDescription",
    "Rounds",
    "Sampled",
    "ScheduledOptimizer",
    "Sequences",
    "Spaces",
    "TensorInputs",
    "ThespisError",
    "TrainedRun",
    "Transitions",
    "Unroll",
    "Unrolls",
    "Update",
    "VTrace",
    "VersionedWeights",
    "add_evaluator",
    "add_replay",
    "as_tensor",
    "as_tensors",
    "build_central_learner",
    "build_distribution",
    "build_environments",
    "build_exploring_actor",
    "build_learner_network",
    "build_local_policy",
    "build_policy_runner",
    "build_queue_learner",
    "build_replay_actor",
    "build_replay_learner",
    "build_worker_network",
    "chosen",
    "edges",
    "inline",
    "load",
    "resume",
    "return_discount",
    "roles",
    "tensor_inputs",
    "train",
    "validate_replay",
]
__version__ = "0.1.0"

_NAMES = {
    "training.train": "train",
    "algorithms": "chosen",
    "algorithms.base": "Algorithm Exploration Sampled",
    "algorithms.dpg": "DPG NoiseLadder",
    "algorithms.dqn": "DQN EpsilonLadder EpsilonSchedule",
    "algorithms.es": "ES Episodes",
    "algorithms.appo": "APPO",
    "algorithms.ppo": "PPO",
    "algorithms.sac": "SAC",
    "algorithms.trpo": "TRPO",
    "algorithms.qtopt": "Examples QTOpt",
    "algorithms.r2d2": "R2D2",
    "algorithms.updates.policy_gradient": "PolicyUpdate",
    "algorithms.updates.update": "Gradients Update",
    "algorithms.vtrace": "VTrace",
    "architectures.builders": "add_evaluator add_replay validate_replay",
    "architectures.parts.actors": "build_exploring_actor build_replay_actor return_discount",
    "architectures.parts.learners": (
        "build_central_learner build_learner_network build_queue_learner build_replay_learner"
    ),
    "architectures.parts.policies": "build_environments build_local_policy build_policy_runner build_worker_network",
    "core.bounds": "Bounds Count CountOrZero Fraction NonNegative Positive",
    "training.callbacks": "Callback",
    "core.config": (
        "Experiment NetworkConfig OptimizerConfig QNetworkConfig ReplayConfig RewardConfig Rounds Sequences "
        "Transitions Unrolls"
    ),
    "envs.spaces": "Spaces",
    "core.errors": "NonFiniteLoss ThespisError",
    "exchange.local": "LocalExchange",
    "exchange.scheduled_optimizer": "ScheduledOptimizer",
    "experience.sources": "QueueSource ReplaySource",
    "networks.policy_runner": "PolicyRunner",
    "networks.configs": "CEMConfig DPGNetworkConfig ESNetworkConfig QFunctionConfig",
    "networks.encoder": "Encoder",
    "networks.heads": "Distribution build_distribution",
    "networks.inputs": "TensorInputs as_tensor as_tensors tensor_inputs",
    "networks.policies": "ActorCritic Agent NetworkOutput PolicyNetwork",
    "networks.q": "QNetwork",
    "networks.torso": "MLP",
    "core.program": "Edge Handle Placement Program",
    "core.context": "Context",
    "core.service": "Method RoleDescription",
    "core.settings": "inline",
    "training.resume": "resume",
    "training.trained_run": "TrainedRun load",
    "core.types": "Unroll VersionedWeights",
}
"""The public names of each module. Each is imported on first use: `--help` and new processes need few of them."""
_find = lazy_names(__name__, _NAMES)
_NAMESPACES = {"edges": "core.edges", "roles": "roles"}
"""Modules of which every name is public."""


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"thespis.{_NAMESPACES[name]}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
