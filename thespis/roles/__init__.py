"""Roles: the classes that architectures wire together. Names import lazily, so that `--help` stays fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thespis.core.lazy import lazy_names

if TYPE_CHECKING:
    from thespis.roles.actor import Actor
    from thespis.roles.actor_policies import LocalPolicy, RemotePolicy
    from thespis.roles.averaging_server import AveragingServer
    from thespis.roles.bellman_updater import BellmanUpdater
    from thespis.roles.coordinator import Coordinator
    from thespis.roles.demonstrations import Demonstrations
    from thespis.roles.evaluator import Evaluator
    from thespis.roles.evolution_worker import EvolutionWorker
    from thespis.roles.inference_server import Batching, InferenceServer
    from thespis.roles.learner import Learner
    from thespis.roles.learner_group import LearnerGroup
    from thespis.roles.node_aggregator import NodeAggregator
    from thespis.roles.parameter_server import ParameterServer
    from thespis.roles.push_aggregator import PushAggregator
    from thespis.roles.queue import Queue, TrainBuffer
    from thespis.roles.replay import Replay
    from thespis.roles.shard import Shard
    from thespis.roles.sharded_learner import ShardedLearner
    from thespis.roles.shared_parameters import SharedParameters
    from thespis.roles.weight_store import CompressedWeightStore, WeightStore

__all__ = [
    "Actor",
    "AveragingServer",
    "Batching",
    "BellmanUpdater",
    "CompressedWeightStore",
    "Coordinator",
    "Demonstrations",
    "Evaluator",
    "EvolutionWorker",
    "InferenceServer",
    "Learner",
    "LearnerGroup",
    "LocalPolicy",
    "NodeAggregator",
    "ParameterServer",
    "PushAggregator",
    "Queue",
    "RemotePolicy",
    "Replay",
    "Shard",
    "ShardedLearner",
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
        "inference_server": "Batching InferenceServer",
        "learner": "Learner",
        "learner_group": "LearnerGroup",
        "node_aggregator": "NodeAggregator",
        "parameter_server": "ParameterServer",
        "push_aggregator": "PushAggregator",
        "actor_policies": "LocalPolicy RemotePolicy",
        "queue": "Queue TrainBuffer",
        "shard": "Shard",
        "sharded_learner": "ShardedLearner",
        "shared_parameters": "SharedParameters",
        "replay": "Replay",
        "bellman_updater": "BellmanUpdater",
        "weight_store": "CompressedWeightStore WeightStore",
    },
)
