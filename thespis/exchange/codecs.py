"""Codecs of compressed gradients. Each is a pair of pure functions between a float32 vector and a few small arrays.

A vector consists of sections, the parts of one tensor each: int32 `[S, 2]`, rows and columns. A matrix is one section;
a kernel of a convolution is a matrix with one row per output channel. A vector is a section with one row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from thespis.core.types import Array, ParameterLayout
from thespis.exchange import precision

_SAMPLES = 16_384
"""Numbers from which `largest` estimates its threshold."""
_FEWEST = 32
"""Fewest numbers that a scale of `Sign` is for: its 16 bits are then at most half a bit per number."""
_DEPENDENT = 1e-6
"""Relative length under which a column is a combination of earlier ones; normalising it would amplify rounding."""


class Codec(Protocol):
    """Encodes vectors of given sections."""

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Return the arrays to send. `previous`: the first array of the previous vector, if there was one."""

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Return the float32 vector that the arrays stand for."""


def build_codec(method: str, *, share: float, rank: int, seed: int) -> Codec:
    """Return the codec of a method, a value of --gradients. `seed`: of PowerSGD's first factors."""
    if method == "topk":
        return TopK(share)
    if method == "powersgd":
        return PowerSGD(rank, seed)
    if method == "int8":
        return Int8()
    return Sign() if method == "sign" else Half(method)


class Half:
    """16 bits per number: `kind` is float16 or bfloat16."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Round to nearest; float16 is clipped to its range."""
        return [precision.encode(vector, self._kind)]

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Widen to float32."""
        return precision.decode(arrays[0])


class Int8:
    """8 bits per number and one scale per section: its largest magnitude is 127."""

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Round to the nearest of 255 values."""
        scales = np.array([np.abs(part).max() / 127 for part in _parts(vector, sections)], np.float32)
        # A section of zeros, or of numbers too small for a scale, is sent as zeros.
        factors = np.divide(1, scales, out=np.zeros_like(scales), where=scales > np.finfo(np.float32).tiny)
        numbers = np.rint(vector * _per_number(factors, sections))
        return [np.clip(numbers, -127, 127).astype(np.int8), scales]

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Multiply by the scales."""
        numbers, scales = arrays
        decoded: Array = numbers * _per_number(scales, sections)
        return decoded


class Sign:
    """One bit per number, and the mean magnitudes of rows and columns (Karimireddy et al., 2019, have one per tensor).

    A magnitude is decoded as the product of its row's and its column's: exact if the magnitudes have rank one. One
    scale for a tensor whose units learn at different rates leaves a large error in the memory.
    """

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Pack the signs; zero counts as positive. The scales are in bfloat16."""
        scales = []
        for part, (rows, columns) in zip(_parts(vector, sections), sections.tolist(), strict=True):
            sizes = np.abs(part).reshape(rows, columns)
            mean = sizes.mean(dtype=np.float64)
            by_row = sizes.mean(axis=1) if columns >= _FEWEST else np.array([mean])
            scales.append(by_row)
            if rows >= _FEWEST:
                scales.append(sizes.mean(axis=0) / (mean or 1.0))
        return [np.packbits(vector >= 0), precision.encode(np.concatenate(scales).astype(np.float32), "bfloat16")]

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Return plus or minus the product of the scales."""
        bits, scales = arrays[0], precision.decode(arrays[1])
        decoded, at = np.empty(size_of(sections), np.float32), 0
        for part, (rows, columns) in zip(_parts(decoded, sections), sections.tolist(), strict=True):
            matrix, number = part.reshape(rows, columns), rows if columns >= _FEWEST else 1
            matrix[:] = scales[at : at + number, None]
            at += number
            if rows >= _FEWEST:
                matrix *= scales[at : at + columns]
                at += columns
        negative = (np.unpackbits(bits, count=len(decoded)) ^ 1).astype(np.uint32) << 31
        np.bitwise_or(decoded.view(np.uint32), negative, out=decoded.view(np.uint32))  # the sign bit of float32
        return decoded


class TopK:
    """The numbers of the largest magnitude, exactly, with their places (Lin et al., 2018).

    Vectors, such as biases, are sent whole: they are small, and a late bias moves a unit for all inputs.
    """

    def __init__(self, share: float) -> None:
        self._share = share

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Select a share of the numbers of all matrices, at least one. Returns places, numbers there, and vectors."""
        matrices = _of_matrices(sections)
        among = vector[matrices]
        places = largest(among, math.ceil(self._share * len(among))) if len(among) else np.empty(0, np.int32)
        return [places, among[places], vector[~matrices]]

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Return a vector that is zero elsewhere."""
        places, values, vectors = arrays
        matrices = _of_matrices(sections)
        decoded = np.zeros(len(matrices), np.float32)
        decoded[np.flatnonzero(matrices)[places]] = values
        decoded[~matrices] = vectors
        return decoded


class PowerSGD:
    """A product of two thin matrices per matrix (Vogels et al., 2019).

    It is one step of power iteration, from the factors of the previous gradient. Vectors are sent as they are, and so
    are matrices for which factors would save less than half.
    """

    def __init__(self, rank: int, seed: int) -> None:
        self._rank, self._seed = rank, seed

    def encode(self, vector: Array, sections: Array, previous: Array | None) -> list[Array]:
        """Return right factors, left factors with orthonormal columns, and the numbers sent as they are."""
        lefts, rights, plain, at = [], [], [], 0
        for number, (part, (rows, columns)) in enumerate(zip(_parts(vector, sections), sections.tolist(), strict=True)):
            if not self.factors(rows, columns):
                plain.append(part)
                continue
            matrix, end = part.reshape(rows, columns), at + columns * self._rank
            warm = None if previous is None else previous[at:end].reshape(columns, self._rank)
            left = _orthonormal(matrix @ self._directions(number, columns, warm))
            lefts.append(left.reshape(-1))
            rights.append((matrix.T @ left).reshape(-1))
            at = end
        return [np.concatenate(parts) if parts else np.empty(0, np.float32) for parts in (rights, lefts, plain)]

    def decode(self, arrays: list[Array], sections: Array) -> Array:
        """Multiply the factors."""
        (rights, lefts, plain), (left, right, rest) = arrays, (0, 0, 0)
        decoded = np.empty(size_of(sections), np.float32)
        for part, (rows, columns) in zip(_parts(decoded, sections), sections.tolist(), strict=True):
            if not self.factors(rows, columns):
                part[:] = plain[rest : rest + part.size]
                rest += part.size
                continue
            ends = left + rows * self._rank, right + columns * self._rank
            factors = lefts[left : ends[0]].reshape(rows, -1), rights[right : ends[1]].reshape(columns, -1)
            np.matmul(factors[0], factors[1].T, out=part.reshape(rows, columns))
            left, right = ends
        return decoded

    def factors(self, rows: int, columns: int) -> bool:
        """Whether factors of a matrix have at most half of its numbers."""
        return 2 * self._rank * (rows + columns) <= rows * columns

    def length(self, sections: Array) -> int:
        """The number of entries of all right factors; 0 if no section is factored."""
        return sum(columns * self._rank for rows, columns in sections.tolist() if self.factors(rows, columns))

    def _directions(self, number: int, columns: int, warm: Array | None) -> Array:
        """Unit columns to multiply a matrix by: the previous right factor, with random columns instead of zero ones.

        Without the replacement, the factors of one zero gradient would be the zero factors of all later ones.
        """
        random = np.random.default_rng([self._seed, number]).normal(size=(columns, self._rank))
        chosen = random if warm is None else np.where(np.any(warm, axis=0), warm, random)
        unit: Array = (chosen / np.linalg.norm(chosen, axis=0)).astype(np.float32)
        return unit


def _orthonormal(matrix: Array) -> Array:
    """Orthonormal columns with the same span, by Gram and Schmidt; zero where a column depends on earlier ones."""
    columns = matrix.T.astype(np.float64)
    for number, column in enumerate(columns):
        length = np.linalg.norm(column)
        for earlier in columns[:number]:
            column -= (earlier @ column) * earlier
        rest = np.linalg.norm(column)
        column *= 1 / rest if rest > _DEPENDENT * length else 0.0
    return np.ascontiguousarray(columns.T, np.float32)


def largest(values: Array, number: int) -> Array:
    """The places of the `number` largest magnitudes, int32 in ascending order; of equal ones, the first.

    A threshold estimated from a sample leaves about twice as many candidates, so that only these are partitioned.
    """
    sizes = np.abs(values)
    candidates = np.arange(len(sizes), dtype=np.int32)
    sample = sizes[:: max(1, len(sizes) // _SAMPLES)]
    rank = 2 * math.ceil(len(sample) * number / len(sizes)) + 16
    if rank < len(sample):
        found = np.flatnonzero(sizes >= np.partition(sample, -rank)[-rank]).astype(np.int32)
        if len(found) >= number:
            candidates = found
    among = sizes[candidates]
    threshold = np.partition(among, -number)[-number]
    over = candidates[among > threshold]
    equal = candidates[among == threshold][: number - len(over)]
    return np.sort(np.concatenate([over, equal]))


def cut_sections(layout: ParameterLayout, bounds: slice) -> Array:
    """The sections of a slice of the flat vector. A matrix that the slice cuts keeps its whole rows as a matrix."""
    sections, start = [], 0
    for _, shape in layout:
        end = start + math.prod(shape)
        low, high = max(start, bounds.start), min(end, bounds.stop)
        columns = math.prod(shape[1:]) if len(shape) > 1 else end - start
        if low < high:
            head = min(high, start - (start - low) // columns * columns)  # the first row that begins in the slice
            rows = (high - head) // columns
            tail = high - head - rows * columns
            sections += [(1, head - low), (rows, columns), (1, tail)]
        start = end
    return np.array([(rows, columns) for rows, columns in sections if rows * columns], np.int32).reshape(-1, 2)


def size_of(sections: Array) -> int:
    """The length of the vector that consists of the sections."""
    return int(sections.astype(np.int64).prod(axis=1).sum())


def _parts(vector: Array, sections: Array) -> Iterator[Array]:
    """The parts of a vector, as views."""
    start = 0
    for rows, columns in sections.tolist():
        yield vector[start : start + rows * columns]
        start += rows * columns


def _per_number(scales: Array, sections: Array) -> Array:
    """The scale of its section for each number."""
    return np.repeat(scales, sections.astype(np.int64).prod(axis=1))


def _of_matrices(sections: Array) -> Array:
    """Whether each number belongs to a section with several rows."""
    return np.repeat(sections[:, 0] > 1, sections.astype(np.int64).prod(axis=1))
