"""Trajectories put together where the policy is: an actor only says what came of each step.

The writer that an actor holds elsewhere is held here, one for every group of environments that ask together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from thespis.core.types import Acted, Array, Inputs, State, Stream, Tree, Unroll, Version, map_tree
from thespis.envs.autoreset import EnvStep
from thespis.envs.inputs import next_inputs
from thespis.experience.writers import UnrollWriter

_FIRST, _TERMINATED, _TRUNCATED, _VALID = 1, 2, 4, 8


class Told(NamedTuple):
    """What an actor says to be given actions for B environments.

    `start`: the first of the environments among the actor's. `number`: how often these have asked before; 0 opens.
    `obs`: `[B, ...]`, to act on. `rewards`: float32 `[B]` and `flags`: uint8 `[B]`, what came of the actions before.
    `finals`: `[K, ...]`, the last observations of the K episodes that were truncated, if they are not in `obs`.
    """

    stream: Stream
    start: int
    number: int
    obs: Tree
    rewards: Array
    flags: Array
    finals: Tree | None


class Usual(NamedTuple):
    """The flags of a step at which no episode opens or ends, which nearly all are, so they are made once."""

    flags: Array
    raw: bytes
    never: Array
    always: Array


@cache
def usual_flags(batch: int) -> Usual:
    flags = np.full(batch, _VALID, np.uint8)
    made = Usual(flags, flags.tobytes(), np.zeros(batch, np.bool_), np.ones(batch, np.bool_))
    for array in (made.flags, made.never, made.always):
        array.flags.writeable = False
    return made


def tell(stream: Stream, start: int, number: int, inputs: Inputs, step: EnvStep | None) -> Told:
    """What to say of `step`, which led to `inputs`; of none before the first."""
    if step is None:
        flags = np.full(len(inputs.first), _FIRST | _VALID, np.uint8)
        return Told(stream, start, number, inputs.obs, inputs.last_reward, flags, None)
    if step.usual:
        return Told(stream, start, number, step.obs, step.rewards, usual_flags(len(step.rewards)).flags, None)
    flags = step.first * np.uint8(_FIRST) | step.valid * np.uint8(_VALID)
    flags |= step.terminated * np.uint8(_TERMINATED) | step.truncated * np.uint8(_TRUNCATED)
    finals = None
    if step.final_obs is not None and step.truncated.any():
        finals = map_tree(lambda leaf: leaf[step.truncated], step.final_obs)
    return Told(stream, start, number, step.obs, step.rewards, flags, finals)


def heard(told: Told) -> EnvStep:
    """The step that was told of; its episodes are the actor's to report."""
    flags, usual = told.flags, usual_flags(len(told.flags))
    if flags is usual.flags or flags.tobytes() == usual.raw:
        never, always = usual.never, usual.always
        return EnvStep(told.obs, told.rewards, never, never, always, never, None, [], usual=True)
    truncated, final = (flags & _TRUNCATED).astype(np.bool_), None
    if told.finals is not None:

        def spread(obs: Array, rows: Array) -> Array:
            full = obs.copy()
            full[truncated] = rows
            return full

        final = map_tree(spread, told.obs, told.finals)
    return EnvStep(
        obs=told.obs,
        rewards=told.rewards,
        terminated=(flags & _TERMINATED).astype(np.bool_),
        truncated=truncated,
        valid=(flags & _VALID).astype(np.bool_),
        first=(flags & _FIRST).astype(np.bool_),
        final_obs=final,
        episodes=[],
    )


def count_truncated(flags: Array) -> int:
    """Of how many environments the episode was truncated."""
    return int(np.count_nonzero(flags & _TRUNCATED))


class Lived(NamedTuple):
    """A step that was lived through: what was done, by which version, and what came of it."""

    acted: Acted
    version: Version
    step: EnvStep


@dataclass(slots=True)
class Seat:
    """Environments that ask together: what they see, the recurrent state they see it in, and the unroll they are in.

    `acted`, `version`: what was done at `inputs`, once it is decided. `unwritten`: the step that led there, until it is
    in the unroll.
    """

    stream: Stream
    number: int
    inputs: Inputs
    state: State
    writer: UnrollWriter
    version: Version
    acted: Acted | None = None
    unwritten: Lived | None = None

    def decide(self, acted: Acted, version: Version) -> None:
        """These actions go out for what was seen last."""
        self.acted, self.version = acted, version

    def goes_on(self, told: Told) -> bool:
        """Whether `told` is what came of the actions that were decided on here."""
        return self.stream == told.stream and told.number == self.number + 1 and self.acted is not None

    def repeats(self, told: Told) -> bool:
        """Whether it was told before, by an actor that has not heard the answer."""
        return self.stream == told.stream and told.number == self.number

    def see(self, told: Told) -> None:
        """Take in a step. To write it down can wait until after the answer, unless it `completes` an unroll."""
        acted = self.acted
        assert acted is not None
        step = heard(told)
        self.inputs = next_inputs(step, acted.actions)
        self.unwritten = Lived(acted, self.version, step)
        self.number, self.state, self.acted = told.number, acted.state, None

    @property
    def completes(self) -> bool:
        """Whether `write` will give an unroll."""
        return self.unwritten is not None and self.writer.ends

    def write(self) -> Unroll | None:
        """Write down the step that was seen last, if it is not yet; returns the unroll that it completes."""
        if self.unwritten is None:
            return None
        lived, self.unwritten = self.unwritten, None
        return self.writer.write(*lived, self.inputs)


class Seats:
    """The seats of all actors, by actor and environment. A new life of an actor is given new ones.

    So is an actor that knows of steps that nobody here does: a server that was restarted has no part in them. Either
    way the unroll that was open is dropped: no unroll has a gap in it.
    """

    def __init__(
        self,
        length: int,
        initial_state: Callable[[int], State],
        no_action: Array,
        return_discount: float | None = None,
    ) -> None:
        """`no_action`: zeros like one action. `return_discount`: also write the discounted returns so far."""
        self._length, self._initial_state, self._no_action = length, initial_state, no_action
        self._return_discount = return_discount
        self._seats: dict[tuple[tuple[str, int], int], Seat] = {}

    def take(self, told: Told) -> Seat:
        """Whose seat it is, with what is seen from it now."""
        key = told.stream.who, told.start
        seat = self._seats.get(key)
        if seat is not None and seat.goes_on(told):
            seat.see(told)
        elif seat is None or not seat.repeats(told):
            seat = self._seats[key] = self._open(told)
        return seat

    def _open(self, told: Told) -> Seat:
        batch = len(told.flags)
        first = (told.flags & _FIRST).astype(np.bool_)
        no_actions = np.zeros((batch, *self._no_action.shape), self._no_action.dtype)
        inputs = Inputs(told.obs, first, no_actions, told.rewards * ~first)
        state = self._initial_state(batch)
        writer = UnrollWriter(self._length, inputs, state, self._return_discount)
        return Seat(told.stream, told.number, inputs, state, writer, Version(0, 0))
