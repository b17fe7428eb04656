"""Chooses how a network is divided over processes, and refuses one that cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

from thespis.core.learners_config import ParallelConfig
from thespis.networks.encoder import Encoder
from thespis.networks.normalize import Normalizer
from thespis.networks.partition import Partition
from thespis.networks.pipeline import PipelineParallel, why_one_stage
from thespis.networks.policies import ActorCritic
from thespis.networks.recurrent import LSTMCore
from thespis.networks.remote import RemoteBlocks
from thespis.networks.tensor_parallel import TensorParallel
from thespis.networks.torso import (
    MLP,
    ImageTorso,
    ImpalaResNet,
    NatureCNN,
    OneHotTorso,
    Residual,
    VectorTorso,
)

_KNOWN = {
    ActorCritic,
    Encoder,
    ImageTorso,
    VectorTorso,
    OneHotTorso,
    NatureCNN,
    ImpalaResNet,
    Residual,
    MLP,
    LSTMCore,
    Normalizer,
    nn.ModuleList,
    nn.Sequential,
    nn.Linear,
    nn.LSTMCell,
    nn.Conv2d,
    nn.MaxPool2d,
    nn.ReLU,
    nn.Flatten,
}
"""The modules of the stock actor-critic: the cut knows what each of them computes."""


class Cut(Protocol):
    """A division of one network. `names`: of all parameters, in order. `partitions`: of those that are divided."""

    names: list[str]

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """How each divided parameter is divided."""

    def parts(self, process: int) -> tuple[list[nn.Module], dict[str, nn.Parameter]]:
        """Return a shard's blocks, and its parameters by their names in the whole network."""

    def divide(self, remote: RemoteBlocks) -> Any:
        """Return the learner's network, which calls the shards."""


def cut_network(network: Any, cfg: ParallelConfig) -> Cut:
    """Cut a whole network, which is then not usable itself."""
    return PipelineParallel(network) if cfg.pipeline else TensorParallel(network, cfg.processes)


def why_whole(network: object, cfg: ParallelConfig) -> str:
    """Say why a network cannot be divided; empty if it can. The network is not usable afterwards."""
    if not isinstance(network, nn.Module):
        return f"{type(network).__name__} is not a torch module"
    for name, module in network.named_modules():
        if type(module) not in _KNOWN:
            where = f"its layer {name!r} is" if name else "it is"
            return f"{where} a {type(module).__name__}, and only the networks of Thespis have known layers"
    if cfg.pipeline:
        return why_one_stage(network)
    for name, partition in TensorParallel(network, cfg.processes).partitions.items():
        if not min(partition.sizes):
            layer = name.rpartition(".")[0]
            return f"layer {layer!r} has {sum(partition.sizes)} units for {cfg.processes} processes; give fewer"
    return ""
