"""Payloads of edges that belong to no single role."""

from __future__ import annotations

from typing import NamedTuple

from thespis.core.types import Array

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
