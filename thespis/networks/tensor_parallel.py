"""Tensor parallelism: the matrices of a network, divided over a learner and its shards.

Two consecutive linear layers of an MLP are one pair. The first is divided by columns (each process computes some of its
outputs), the second by rows (each process reads these outputs, and the results are added up), as in Megatron-LM
(Shoeybi et al., 2019, arXiv:1909.08053). So each pair needs one exchange per pass. A single layer and the LSTM are
divided by columns. Convolutions and heads, whose weights are few, stay whole in the learner.

    pair:   y = act(x W1' + b1) W2' + b2 = sum over processes of act(x W1p' + b1p) W2p'  + b2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from thespis.networks.partition import Partition, shares
from thespis.networks.recurrent import LSTMCore
from thespis.networks.remote import RemoteBlocks, RemotePass
from thespis.networks.torso import MLP, Convolutional

_GATES = 4


class LinearPair(nn.Module):
    """A process's part of two linear layers. Only the learner's part has the second bias."""

    def __init__(self, first: nn.Linear, second: nn.Linear, activation: str) -> None:
        super().__init__()
        self.first, self.second = first, second
        self._activation = activation

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return this part's addend `[N, outputs]` for `[N, inputs]`."""
        return (F.linear(activate(self.first(x), self._activation), self.second.weight, self.second.bias),)


class LinearPart(nn.Module):
    """A process's columns of one linear layer."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return these columns of the output, `[N, part]`, for `[N, inputs]`."""
        return (self.layer(x),)


class LSTMPart(nn.Module):
    """A process's units of an LSTM cell, written as matrix products. The units read the hidden state of all units."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return hidden and cell state of these units, `[B, part]`.

        `x`: `[B, inputs]`. `hidden`: of all units. `cell`: of these units. Gate order as in `nn.LSTMCell`: i, f, g, o.
        """
        own = self.cell
        gates = F.linear(x, own.weight_ih, own.bias_ih) + F.linear(hidden, own.weight_hh, own.bias_hh)
        entry, forget, new, out = gates.chunk(_GATES, 1)
        cell = forget.sigmoid() * cell + entry.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell


class Divided:
    """The blocks of one divided module: the learner's parts, and passes through those of the shards."""

    def __init__(self, parts: list[Any], first: int, processes: int, remote: RemoteBlocks) -> None:
        """`first`: number of the first block."""
        self.parts, self.processes = parts, processes
        self._first, self._remote = first, remote

    def forward(self, number: int, anchor: Tensor, given: Sequence[tuple[Tensor, ...]]) -> list[Any]:
        """Return the outputs of all processes. `anchor`: see `RemotePass`. `given`: the inputs of each process."""
        passes = [
            RemotePass(self._remote.open(process, self._first + number), anchor, given[process])
            for process in range(1, self.processes)
        ]
        return [self.parts[number](*given[0]), *(each.outputs() for each in passes)]


class DividedMLP(nn.Module):
    """An MLP of which the learner holds a part. `layers` has its pieces, under the names of the whole."""

    def __init__(self, whole: MLP, divided: Divided) -> None:
        super().__init__()
        self.size, self.activation = whole.size, whole.activation
        self._divided = divided
        self.layers = nn.ModuleList()
        for part in divided.parts:
            self.layers.extend([part.first, part.second] if isinstance(part, LinearPair) else [part.layer])

    def forward(self, x: Tensor) -> Tensor:
        """Return features `[N, size]` of vectors `[N, inputs]`."""
        for number, part in enumerate(self._divided.parts):
            given = [(x,)] * self._divided.processes
            outputs = [output[0] for output in self._divided.forward(number, next(part.parameters()), given)]
            x = sum(outputs[1:], outputs[0]) if isinstance(part, LinearPair) else torch.cat(outputs, 1)
            x = activate(x, self.activation)
        return x


class DividedLinear(nn.Linear):
    """A linear layer of which the learner holds some columns."""

    def __init__(self, divided: Divided) -> None:
        nn.Module.__init__(self)
        layer = divided.parts[0].layer
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self._divided = divided

    def forward(self, input: Tensor) -> Tensor:
        """Return all columns, `[N, outputs]`."""
        given = [(input,)] * self._divided.processes
        return torch.cat([output[0] for output in self._divided.forward(0, self.weight, given)], 1)


class DividedLSTM(LSTMCore):
    """An LSTM core of which the learner holds some units. It collects those of all others after each step."""

    def __init__(self, whole: LSTMCore, divided: Divided, sizes: tuple[int, ...]) -> None:
        nn.Module.__init__(self)
        self.size, self.cell = whole.size, divided.parts[0].cell
        self._divided, self._sizes = divided, sizes

    def step(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the next hidden and cell state of all units."""
        given = [(x, hidden, own) for own in torch.split(cell, list(self._sizes), 1)]
        states = self._divided.forward(0, self.cell.weight_hh, given)
        return torch.cat([state[0] for state in states], 1), torch.cat([state[1] for state in states], 1)


class _Block(NamedTuple):
    """A block: `build(process)` returns a process's part. `names`: whole names of the part's parameters."""

    build: Callable[[int], nn.Module]
    names: dict[str, str]


class _Unit(NamedTuple):
    """A module that is divided, by its name in the network, and its blocks."""

    name: str
    module: nn.Module
    blocks: list[_Block]


class TensorParallel:
    """A cut of a network into `processes` parts of nearly equal size, the same in every process."""

    def __init__(self, network: nn.Module, processes: int) -> None:
        """`network`: a whole network."""
        self._network, self._processes = network, processes
        self.names = [name for name, _ in network.named_parameters()]
        self.partitions: dict[str, Partition] = {}
        self._units = list(self._cut())

    def parts(self, process: int) -> tuple[list[nn.Module], dict[str, nn.Parameter]]:
        """Return a shard's part of each block, and its parameters by their names in the whole network."""
        parts: list[nn.Module] = []
        named: dict[str, nn.Parameter] = {}
        for block in (block for unit in self._units for block in unit.blocks):
            part = block.build(process)
            parts.append(part)
            named |= {block.names[name]: value for name, value in part.named_parameters() if name in block.names}
        return parts, named

    def divide(self, remote: RemoteBlocks) -> nn.Module:
        """Make the network the learner's part, whose divided layers call the shards, and return it."""
        first = 0
        for name, module, blocks in self._units:
            parts = [block.build(0) for block in blocks]
            layer = Divided(parts, first, self._processes, remote)
            made: nn.Module
            if isinstance(module, MLP):
                made = DividedMLP(module, layer)
            elif isinstance(module, LSTMCore):
                made = DividedLSTM(module, layer, shares(module.size, self._processes))
            else:
                made = DividedLinear(layer)
            owner, _, attribute = name.rpartition(".")
            setattr(self._network.get_submodule(owner), attribute, made)
            first += len(blocks)
        return self._network

    def _cut(self) -> Iterator[_Unit]:
        for name, module in self._network.named_modules():
            if isinstance(module, MLP):
                layers = [(f"{name}.layers.{number}", layer) for number, layer in enumerate(module.layers)]
                pairs = len(layers) // 2 * 2
                blocks = [self._pair(layers[n], layers[n + 1], module.activation) for n in range(0, pairs, 2)]
                yield _Unit(name, module, blocks + [self._columns(*layer) for layer in layers[pairs:]])
            elif isinstance(module, Convolutional):
                yield _Unit(f"{name}.output", module.output, [self._columns(f"{name}.output", module.output)])
            elif isinstance(module, LSTMCore):
                yield _Unit(name, module, [self._lstm(f"{name}.cell", module.cell)])

    def _pair(self, first: tuple[str, nn.Linear], second: tuple[str, nn.Linear], activation: str) -> _Block:
        (name1, layer1), (name2, layer2) = first, second
        sizes = shares(layer1.out_features, self._processes)
        self._divide_columns(name1, layer1)
        shape = tuple(layer2.weight.shape)
        self.partitions[f"{name2}.weight"] = Partition(shape, shape, 1, sizes)

        def build(process: int) -> nn.Module:
            own = _linear(layer2, layer2.bias if process == 0 else None, self.partitions, name2, process)
            return LinearPair(_linear(layer1, layer1.bias, self.partitions, name1, process), own, activation)

        ends = {f"first.{end}": f"{name1}.{end}" for end in ("weight", "bias")}
        return _Block(build, ends | {"second.weight": f"{name2}.weight"})

    def _columns(self, name: str, layer: nn.Linear) -> _Block:
        self._divide_columns(name, layer)

        def build(process: int) -> nn.Module:
            return LinearPart(_linear(layer, layer.bias, self.partitions, name, process))

        return _Block(build, {f"layer.{end}": f"{name}.{end}" for end in ("weight", "bias")})

    def _divide_columns(self, name: str, layer: nn.Linear) -> None:
        sizes = shares(layer.out_features, self._processes)
        for end, value in layer.named_parameters():
            self.partitions[f"{name}.{end}"] = Partition(tuple(value.shape), tuple(value.shape), 0, sizes)

    def _lstm(self, name: str, cell: nn.LSTMCell) -> _Block:
        size = cell.hidden_size
        sizes = shares(size, self._processes)
        for end, value in cell.named_parameters():
            shape = tuple(value.shape)
            self.partitions[f"{name}.{end}"] = Partition(shape, (_GATES, size, *shape[1:]), 1, sizes)

        def build(process: int) -> nn.Module:
            made = nn.LSTMCell(cell.input_size, sizes[process], device="meta")
            for end, value in cell.named_parameters():
                setattr(made, end, _piece(value, self.partitions[f"{name}.{end}"], process))
            return LSTMPart(made)

        return _Block(build, {f"cell.{end}": f"{name}.{end}" for end, _ in cell.named_parameters()})


def activate(x: Tensor, activation: str) -> Tensor:
    """Apply tanh or relu."""
    return x.tanh() if activation == "tanh" else x.relu()


def _linear(
    layer: nn.Linear, bias: nn.Parameter | None, partitions: dict[str, Partition], name: str, process: int
) -> nn.Linear:
    """A process's piece of a layer. A bias without partition is whole."""
    weight = _piece(layer.weight, partitions[f"{name}.weight"], process)
    made = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    made.weight = weight
    if bias is not None:
        partition = partitions.get(f"{name}.bias")
        made.bias = bias if partition is None else _piece(bias, partition, process)
    return made


def _piece(whole: Tensor, partition: Partition, process: int) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(partition.piece(whole.detach().numpy(), process)))
