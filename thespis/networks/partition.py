"""Division of tensors over processes, and the conversion between whole tensors and parts.

Process 0 is the learner. Tensors without a partition belong to it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array


class Partition(NamedTuple):
    """How a tensor is divided. `view`: the shape in which it is cut along `dim`. `sizes`: of the piece of each process.

    A size of 0 means that the process holds nothing of the tensor.
    """

    shape: tuple[int, ...]
    view: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]

    def piece(self, whole: Array, process: int) -> Array:
        """Return the piece of one process, as a copy."""
        start = sum(self.sizes[:process])
        cut = whole.reshape(self.view).take(range(start, start + self.sizes[process]), self.dim)
        return np.ascontiguousarray(cut.reshape(self.shape_of(process)))

    def join(self, pieces: Sequence[Array]) -> Array:
        """Return the whole tensor. `pieces`: of the processes that hold any, in order."""
        holders = [process for process, size in enumerate(self.sizes) if size]
        views = [
            piece.reshape(*self.view[: self.dim], self.sizes[process], *self.view[self.dim + 1 :])
            for process, piece in zip(holders, pieces, strict=True)
        ]
        return np.concatenate(views, self.dim).reshape(self.shape)

    def shape_of(self, process: int) -> tuple[int, ...]:
        """Return the shape of a piece: all axes of `view` are kept but those that `shape` merges."""
        if self.view == self.shape:
            return *self.shape[: self.dim], self.sizes[process], *self.shape[self.dim + 1 :]
        groups = self.view[0]
        return groups * self.sizes[process], *self.shape[1:]


def shares(size: int, processes: int) -> tuple[int, ...]:
    """Return `size` divided into nearly equal parts; the first ones are not smaller than the last ones."""
    return tuple(size // processes + (process < size % processes) for process in range(processes))


Pieces = dict[str, Array]
"""The pieces of one process: weights as `weights/NAME`, running averages of its optimiser as `slots/SLOT/NAME`."""


class StateLayout:
    """Converts the state of a learner between its own pieces, those of its shards, and whole tensors.

    The whole state is that of a learner that holds all parameters, so any layout can load it.
    """

    def __init__(self, names: Sequence[str], own: Sequence[str], partitions: Mapping[str, Partition]) -> None:
        """`names`: of all parameters, in order. `own`: those of which the learner holds a piece, in order."""
        self._names, self._own, self.partitions = list(names), list(own), partitions
        self.processes = max((len(partition.sizes) for partition in partitions.values()), default=1)

    def split(self, whole: dict[str, Array]) -> tuple[dict[str, Array], list[Pieces]]:
        """Return the learner's own state, and the pieces of each shard."""
        own: dict[str, Array] = {}
        shards: list[Pieces] = [{} for _ in range(self.processes - 1)]
        for key, array in whole.items():
            slot, name = self._parse(key, self._names)
            partition = self.partitions.get(name)
            if partition is None:
                own[key if slot is None else self._own_key(slot, name)] = array
                continue
            for process, size in enumerate(partition.sizes):
                if size:
                    piece = partition.piece(array, process) if array.shape == partition.shape else array
                    if process:
                        shards[process - 1][f"weights/{name}" if slot is None else f"slots/{slot}/{name}"] = piece
                    else:
                        own[key if slot is None else self._own_key(slot, name)] = piece
        return own, shards

    def join(self, own: dict[str, Array], shards: Sequence[Pieces]) -> dict[str, Array]:
        """Return the whole state: what `split` divided."""
        pieces: dict[str, list[Array]] = {}
        for key, array in own.items():
            slot, name = self._parse(key, self._own)
            pieces[key if slot is None else self._whole_key(slot, name)] = [array]
        for shard in shards:
            for key, array in shard.items():
                kind, _, rest = key.partition("/")
                slot, _, name = rest.partition("/") if kind == "slots" else ("", "", rest)
                pieces.setdefault(self._whole_key(slot, name) if slot else key, []).append(array)
        return {key: self._joined(key, arrays) for key, arrays in pieces.items()}

    def shapes(self, own: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the whole shapes of all parameters. `own`: the shapes of the learner's pieces, in order."""
        known = dict(zip(self._own, own, strict=True)) | {name: each.shape for name, each in self.partitions.items()}
        return [known[name] for name in self._names]

    def split_gradients(self, whole: Sequence[Array]) -> tuple[list[Array], list[dict[str, Array]]]:
        """Divide one array per parameter: the learner's list, and the arrays of each shard by name."""
        given = {f"weights/{name}": array for name, array in zip(self._names, whole, strict=True)}
        own, shards = self.split(given)
        return [own[f"weights/{name}"] for name in self._own], [
            {key.removeprefix("weights/"): array for key, array in shard.items()} for shard in shards
        ]

    def join_gradients(self, own: Sequence[Array], shards: Sequence[dict[str, Array]]) -> list[Array]:
        """Return one whole array per parameter."""
        mine = {f"weights/{name}": array for name, array in zip(self._own, own, strict=True)}
        others = [{f"weights/{name}": array for name, array in shard.items()} for shard in shards]
        joined = self.join(mine, others)
        return [joined[f"weights/{name}"] for name in self._names]

    def _joined(self, key: str, arrays: list[Array]) -> Array:
        name = self._parse(key, self._names)[1]
        partition = self.partitions.get(name)
        if partition is None or not arrays[0].shape:
            return arrays[0]
        return partition.join(arrays)

    def _parse(self, key: str, names: list[str]) -> tuple[str | None, str]:
        """The slot and the parameter of a key of a learner's state; no slot for weights, no name for the rest."""
        kind, _, rest = key.partition("/")
        if kind == "weights":
            return None, rest
        slot, _, number = rest.partition("/")
        if kind == "exchange" and number.isdecimal():
            return slot, names[int(number)]
        return None, ""

    def _own_key(self, slot: str, name: str) -> str:
        return f"exchange/{slot}/{self._own.index(name)}"

    def _whole_key(self, slot: str, name: str) -> str:
        return f"exchange/{slot}/{self._names.index(name)}"
