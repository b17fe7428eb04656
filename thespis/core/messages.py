"""Payloads of edges that belong to no single role."""

from __future__ import annotations

from typing import NamedTuple

from thespis.core.types import Array

Plan = list[tuple[str, str, int]]
"""Name, numpy type and length of each array."""


class Answer(NamedTuple):
    """`actions`: `[B, ...]`, `logp`: float32 `[B]`, by weights of the packed `version`."""

    actions: Array
    logp: Array
    version: int


class Invitation(NamedTuple):
    """What an actor needs to come in. It is handed out over the run's own edges."""

    target: str
    token: str


class Place(NamedTuple):
    """Where a block is, the name by which it is known to be the right one, and what is in it."""

    process: int
    descriptor: int
    name: str
    plan: Plan
