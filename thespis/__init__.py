"""Thespis: classic distributed reinforcement-learning architectures that run, can be read, and can be compared.

`__all__` lists the public API: runs, and the parts of custom architectures, algorithms, networks and roles. Everything
else may move.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thespis.core.lazy import lazy_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from thespis import roles
    from thespis._train import train
    from thespis.algorithms.appo import APPO
    from thespis.algorithms.base import Algorithm, Exploration, Sampled, chosen
    from thespis.algorithms.dpg import DPG, NoiseLadder
    from thespis.algorithms.dqn import DQN, EpsilonLadder, EpsilonSchedule
    from thespis.algorithms.es import ES, Episodes
    from thespis.algorithms.ppo import PPO
    from thespis.algorithms.qtopt import Examples, QTOpt
    from thespis.algorithms.r2d2 import R2D2, Sequences
    from thespis.algorithms.sac import SAC
    from thespis.algorithms.trpo import TRPO
    from thespis.algorithms.updates.policy_gradient import PolicyUpdate
    from thespis.algorithms.updates.update import Gradients, Update
    from thespis.algorithms.vtrace import VTrace
    from thespis.architectures.builders import (
        add_evaluator,
        add_replay,
        build_queue_learner,
        build_replay_actor,
        build_replay_learner,
        build_rounds_learner,
        build_stepper,
        central_learner,
        environments,
        exploring_actor,
        learner_network,
        local_policy,
        return_discount,
        validate_replay,
        worker_network,
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
        Transitions,
        Unrolls,
    )
    from thespis.core.context import Context
    from thespis.core.errors import NonFiniteLoss, ThespisError
    from thespis.core.program import Edge, Handle, Placement, Program
    from thespis.core.service import Method, RoleDescription
    from thespis.core.settings import inline
    from thespis.core.types import Unroll, Versioned
    from thespis.envs.spaces import Spaces
    from thespis.exchange.local import LocalExchange
    from thespis.experience.sources import Batches, Draws
    from thespis.networks.acting import Stepper
    from thespis.networks.configs import CEMConfig, DPGNetworkConfig, EvolvedNetworkConfig, ScoredNetworkConfig
    from thespis.networks.encoder import Encoder
    from thespis.networks.heads import Distribution, build_distribution
    from thespis.networks.inputs import TensorInputs, as_tensor, as_tensors, tensor_inputs
    from thespis.networks.policies import ActorCritic, Agent, Output, PolicyNetwork
    from thespis.networks.q import QNetwork
    from thespis.networks.torso import MLP
    from thespis.training.callbacks import Callback
    from thespis.training.run import Trained

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
    "Batches",
    "Bounds",
    "CEMConfig",
    "Callback",
    "Context",
    "Count",
    "CountOrZero",
    "DPGNetworkConfig",
    "Distribution",
    "Draws",
    "Edge",
    "Encoder",
    "Episodes",
    "EpsilonLadder",
    "EpsilonSchedule",
    "EvolvedNetworkConfig",
    "Examples",
    "Experiment",
    "Exploration",
    "Fraction",
    "Gradients",
    "Handle",
    "LocalExchange",
    "Method",
    "NetworkConfig",
    "NoiseLadder",
    "NonFiniteLoss",
    "NonNegative",
    "OptimizerConfig",
    "Output",
    "Placement",
    "PolicyNetwork",
    "PolicyUpdate",
    "Positive",
    "Program",
    "QNetwork",
    "QNetworkConfig",
    "QTOpt",
    "ReplayConfig",
    "RewardConfig",
    "RoleDescription",
    "Rounds",
    "Sampled",
    "ScoredNetworkConfig",
    "Sequences",
    "Spaces",
    "Stepper",
    "TensorInputs",
    "ThespisError",
    "Trained",
    "Transitions",
    "Unroll",
    "Unrolls",
    "Update",
    "VTrace",
    "Versioned",
    "add_evaluator",
    "add_replay",
    "as_tensor",
    "as_tensors",
    "build_distribution",
    "build_queue_learner",
    "build_replay_actor",
    "build_replay_learner",
    "build_rounds_learner",
    "build_stepper",
    "central_learner",
    "chosen",
    "edges",
    "environments",
    "exploring_actor",
    "inline",
    "learner_network",
    "load",
    "local_policy",
    "resume",
    "return_discount",
    "roles",
    "tensor_inputs",
    "train",
    "validate_replay",
    "worker_network",
]
__version__ = "0.1.0"

_NAMES = {
    "training.train": "train",
    "algorithms.base": "Algorithm Exploration Sampled chosen",
    "algorithms.dpg": "DPG NoiseLadder",
    "algorithms.dqn": "DQN EpsilonLadder EpsilonSchedule",
    "algorithms.es": "ES Episodes",
    "algorithms.appo": "APPO",
    "algorithms.ppo": "PPO",
    "algorithms.sac": "SAC",
    "algorithms.trpo": "TRPO",
    "algorithms.qtopt": "Examples QTOpt",
    "algorithms.r2d2": "R2D2 Sequences",
    "algorithms.updates.policy_gradient": "PolicyUpdate",
    "algorithms.updates.update": "Gradients Update",
    "algorithms.vtrace": "VTrace",
    "architectures.builders": (
        "add_evaluator add_replay build_queue_learner build_replay_actor build_replay_learner "
        "build_rounds_learner build_stepper central_learner environments exploring_actor "
        "learner_network local_policy return_discount validate_replay worker_network"
    ),
    "core.bounds": "Bounds Count CountOrZero Fraction NonNegative Positive",
    "training.callbacks": "Callback",
    "core.config": (
        "Experiment NetworkConfig OptimizerConfig QNetworkConfig ReplayConfig RewardConfig Rounds Transitions Unrolls"
    ),
    "envs.spaces": "Spaces",
    "core.errors": "NonFiniteLoss ThespisError",
    "exchange.local": "LocalExchange",
    "experience.sources": "Batches Draws",
    "networks.acting": "Stepper",
    "networks.configs": "CEMConfig DPGNetworkConfig EvolvedNetworkConfig ScoredNetworkConfig",
    "networks.encoder": "Encoder",
    "networks.heads": "Distribution build_distribution",
    "networks.inputs": "TensorInputs as_tensor as_tensors tensor_inputs",
    "networks.policies": "ActorCritic Agent Output PolicyNetwork",
    "networks.q": "QNetwork",
    "networks.torso": "MLP",
    "core.program": "Edge Handle Placement Program",
    "core.context": "Context",
    "core.service": "Method RoleDescription",
    "core.settings": "inline",
    "training.run": "Trained",
    "core.types": "Unroll Versioned",
}
"""The names of each module. They are imported when first used: `--help` and processes that start need few of them."""
_find = lazy_names(__name__, _NAMES)
_NAMESPACES = {"edges": "core.edges", "roles": "roles"}
"""Modules that are public as a whole."""


def resume(
    path: str | PathLike[str],
    *,
    trust: bool = False,
    callbacks: Sequence[Any] = (),
    quiet: bool = False,
    **settings: Any,
) -> Trained:
    """Go on with a run from its newest valid checkpoint, and return it. `settings` replace those it had.

    `callbacks`: objects beside those that its settings name.

    >>> resume("runs/impala-CartPole-v1-s0-1", total_steps=2_000_000, optimizer={"learning_rate": 1e-4})
    """
    from pathlib import Path

    from thespis.training import resume as resuming

    where = Path(path)
    if not trust:
        resuming.check_trust(where)
    return resuming.resume(where, lambda cfg: resuming.updated(cfg, settings), quiet=quiet, callbacks=callbacks)


def load(path: str | PathLike[str], *, trust: bool = False) -> Trained:
    """A run that was trained earlier, from its directory.

    A run names the Python code of its environment. With `trust` that code is run, whoever made the run; code that you
    have trained with on this machine needs no trust.
    """
    from thespis.training.run import Trained

    return Trained(str(path), trust=trust)


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"thespis.{_NAMESPACES[name]}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
