"""The roles architectures are made of, imported when they are first named so that `--help` stays quick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thespis.core.lazy import lazy_names

if TYPE_CHECKING:
    from thespis.roles.actor import Actor
    from thespis.roles.averaging_server import AveragingServer
    from thespis.roles.coordinator import Coordinator
    from thespis.roles.demonstrations import Demonstrations
    from thespis.roles.evaluator import Evaluator
    from thespis.roles.evolution_worker import EvolutionWorker
    from thespis.roles.inference import InferenceServer
    from thespis.roles.learner import Learner
    from thespis.roles.parameter_server import ParameterServer
    from thespis.roles.policy import LocalPolicy, RemotePolicy
    from thespis.roles.replay import Replay, TrainBuffer
    from thespis.roles.shared_parameters import SharedParameters
    from thespis.roles.table import ReplayTable
    from thespis.roles.updater import BellmanUpdater
    from thespis.roles.weights import WeightStore

__all__ = [
    "Actor",
    "AveragingServer",
    "BellmanUpdater",
    "Coordinator",
    "Demonstrations",
    "Evaluator",
    "EvolutionWorker",
    "InferenceServer",
    "Learner",
    "LocalPolicy",
    "ParameterServer",
    "RemotePolicy",
    "Replay",
    "ReplayTable",
    "SharedParameters",
    "TrainBuffer",
    "WeightStore",
]

__getattr__ = lazy_names(
    __name__,
    {
        "actor": "Actor",
        "averaging_server": "AveragingServer",
        "coordinator": "Coordinator",
        "demonstrations": "Demonstrations",
        "evaluator": "Evaluator",
        "evolution_worker": "EvolutionWorker",
        "inference": "InferenceServer",
        "learner": "Learner",
        "parameter_server": "ParameterServer",
        "policy": "LocalPolicy RemotePolicy",
        "replay": "Replay TrainBuffer",
        "shared_parameters": "SharedParameters",
        "table": "ReplayTable",
        "updater": "BellmanUpdater",
        "weights": "WeightStore",
    },
)
