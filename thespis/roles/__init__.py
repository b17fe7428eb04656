"""The roles architectures are made of, imported when they are first named so that `--help` stays quick."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thespis.roles.actor import Actor
    from thespis.roles.averaging_server import AveragingServer
    from thespis.roles.controller import Controller
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
    from thespis.roles.trainer import Trainer
    from thespis.roles.updater import BellmanUpdater
    from thespis.roles.weights import WeightStore

__all__ = [
    "Actor",
    "AveragingServer",
    "BellmanUpdater",
    "Controller",
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
    "Trainer",
    "WeightStore",
]

_HOMES = {
    "Actor": "actor",
    "Controller": "controller",
    "AveragingServer": "averaging_server",
    "BellmanUpdater": "updater",
    "Coordinator": "coordinator",
    "Demonstrations": "demonstrations",
    "Evaluator": "evaluator",
    "EvolutionWorker": "evolution_worker",
    "InferenceServer": "inference",
    "Learner": "learner",
    "LocalPolicy": "policy",
    "ParameterServer": "parameter_server",
    "RemotePolicy": "policy",
    "Replay": "replay",
    "ReplayTable": "table",
    "SharedParameters": "shared_parameters",
    "Trainer": "trainer",
    "TrainBuffer": "replay",
    "WeightStore": "weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"thespis.roles has no role {name!r}")
    return getattr(importlib.import_module(f"thespis.roles.{_HOMES[name]}"), name)
