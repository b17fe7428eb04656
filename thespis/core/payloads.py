"""Payloads of edges that belong to no single role."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from thespis.core.types import Array, ParameterLayout, Version

BlockLayout = list[tuple[str, str, int]]
"""Name, numpy dtype and length of each array of a block."""


class ActResponse(NamedTuple):
    """Response of an inference server.

    `actions`: `[B, ...]`. `logp`: float32 `[B]`, their log-probabilities. `version`: of the weights, packed.
    """

    actions: Array
    logp: Array
    version: int


class InferenceEndpoint(NamedTuple):
    """Address and token with which an actor connects to an inference server. Only the run's own edges carry it."""

    address: str
    token: str


class BlockAddress(NamedTuple):
    """Address of a shared-memory block: owner's process id, file descriptor there, expected name, and layout."""

    process: int
    descriptor: int
    name: str
    plan: BlockLayout


class CompressedGradient(NamedTuple):
    """A gradient vector in the form of one message; the message describes itself.

    `method`: a value of --gradients. `rank`: of PowerSGD's factors. `sections`: int32 `[S, 2]`, rows and columns of the
    parts of the vector. `arrays`: what the method sends.
    """

    method: str
    rank: int
    sections: Array
    arrays: list[Array]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.sections.nbytes + sum(array.nbytes for array in self.arrays)

    @property
    def size(self) -> int:
        """Length of the vector."""
        return int(self.sections.prod(axis=1, dtype=np.int64).sum())


GradientMessage = Array | CompressedGradient
"""A gradient vector: float32, or compressed."""


class GatheredGradients(NamedTuple):
    """The compressed contributions to a round one by one, instead of their sum, which would have to be encoded again.

    `parts`: in a fixed order; the receiver's own is None, because it has it. `weights`: the factor of each in the sum.
    """

    parts: list[CompressedGradient | None]
    weights: list[float]

    def without(self, number: int) -> GatheredGradients:
        """The same for the sender of part `number`."""
        return self._replace(parts=[None if at == number else part for at, part in enumerate(self.parts)])


class WeightLayout(NamedTuple):
    """The weights that acting reads, in the order of a compressed message.

    `rounded`: names and shapes of the float32 parameters, which are rounded. `exact`: names of all others, such as
    running statistics.
    """

    rounded: ParameterLayout
    exact: list[str]

    @property
    def names(self) -> list[str]:
        """All names."""
        return [*(name for name, _ in self.rounded), *self.exact]

    @property
    def size(self) -> int:
        """Number of rounded numbers."""
        return sum(math.prod(shape) for _, shape in self.rounded)


class CompressedWeights(NamedTuple):
    """The weights that acting reads, in the form of one message.

    `base`: the version that the receiver needs to decode it; None if it needs none. `data`: with a base, the
    compressed difference of the bits, uint8; without, the bits of all parameters in bfloat16, uint16 `[n]`.
    `exact`: the arrays that are not rounded. `checksum`: of the decoded bits and of `exact`.
    """

    version: Version
    base: Version | None
    data: Array
    exact: list[Array]
    checksum: int

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.data.nbytes + sum(array.nbytes for array in self.exact)


RoleState = tuple[dict[str, Array], dict[str, Any]]
"""Arrays and JSON values, as `state` of a role returns them."""


class Member(NamedTuple):
    """One incarnation of a learner in a group of learners."""

    learner: int
    incarnation: int


class Contribution(NamedTuple):
    """A learner's part of one round of its group: gradients to add up, or statistics to collect.

    `update`, `call`: the learner's count of updates, and of its rounds in the current one. `gradients`: one vector, or
    None if the group must not apply any in this round. `rows`: the number of rows that the loss is a mean of.
    `statistics`: an array for all learners, instead of gradients. `steps`: environment steps of the batch that no
    earlier round has counted. `fraction`: the used fraction of the budget. `digest`: of the parameters, in some rounds.
    """

    update: int
    call: int
    gradients: GradientMessage | None = None
    rows: int = 0
    statistics: Array | None = None
    steps: int = 0
    fraction: float = 0.0
    digest: int | None = None

    @property
    def turn(self) -> tuple[int, int]:
        """The round that this part belongs to. Learners in step with each other are in the same round."""
        return self.update, self.call


class NodeContribution(NamedTuple):
    """The contributions of learners of one node to one round, added up.

    `members`: the learners, in the order of their indices. `part`: as of one learner, without statistics. `statistics`:
    of each learner.
    """

    members: list[Member]
    part: Contribution
    statistics: list[Array]


class Combined(NamedTuple):
    """The result of a round. All learners derive the same mean gradients from it, and the same statistics.

    `gradients`: their mean over all rows, or the contributions of the others; None if a learner had none to apply.
    `statistics`: of each learner, in the order of their indices. `learners`: how many took part. `steps`: the sum.
    `fraction`: the largest.
    `leads`: whether this learner acts for the group, e.g. counts its updates. `newcomers`: whether this learner must
    offer its state when the update is complete.
    """

    gradients: GradientMessage | GatheredGradients | None
    statistics: list[Array]
    learners: int
    steps: int
    fraction: float
    leads: bool = False
    newcomers: bool = False


class Admission(NamedTuple):
    """Entry to a group of learners. `state`: that of another learner, to load first; None if it would be the same.

    `newcomers`: whether this learner must offer its own state to others before its first round.
    """

    state: RoleState | None
    newcomers: bool


class ShardTurn(NamedTuple):
    """One computation of a learner: forward and backward passes, and perhaps the step that applies the gradients.

    `session`: of the learner with its shards, which begins when it sends them their state. `number`: counts up.
    """

    session: int
    number: int


class ForwardRequest(NamedTuple):
    """One pass through a block of a shard.

    `ticket`: names the pass in the backward pass. `wanted`: which inputs need derivatives; None without backward pass.
    """

    ticket: int
    block: int
    inputs: list[Array]
    wanted: list[bool] | None
