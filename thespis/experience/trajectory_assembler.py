"""Trajectories assembled next to the policy, as in SEED: an actor only reports the result of each step.

The server holds one writer per group of environments, in place of the writer that an IMPALA actor holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from thespis.core.types import Array, Inputs, PolicyOutput, State, Stream, Tree, Unroll, Version, map_tree
from thespis.envs.autoreset import EnvStep
from thespis.envs.inputs import next_inputs
from thespis.experience.writers import UnrollWriter

_FIRST, _TERMINATED, _TRUNCATED, _VALID = 1, 2, 4, 8


class StepMessage(NamedTuple):
    """An actor's request for actions of B environments.

    `start`: index of the first of these environments within the actor. `number`: requests of this group before this
    one; 0 opens.
    `obs`: `[B, ...]`, to act on. `rewards`: float32 `[B]` and `flags`: uint8 `[B]`, the result of the last actions.
    `finals`: `[K, ...]`, last observations of the K truncated episodes, if `obs` does not hold them.
    """

    stream: Stream
    start: int
    number: int
    obs: Tree
    rewards: Array
    flags: Array
    finals: Tree | None


class CommonFlags(NamedTuple):
    """The cached flags of a step at which no episode starts or ends, as in nearly every step."""

    flags: Array
    raw: bytes
    never: Array
    always: Array


@cache
def common_flags(batch: int) -> CommonFlags:
    """The flags of a common step of `batch` environments; read-only, because all callers share them."""
    flags = np.full(batch, _VALID, np.uint8)
    made = CommonFlags(flags, flags.tobytes(), np.zeros(batch, np.bool_), np.ones(batch, np.bool_))
    for array in (made.flags, made.never, made.always):
        array.flags.writeable = False
    return made


def encode_step(stream: Stream, start: int, number: int, inputs: Inputs, step: EnvStep | None) -> StepMessage:
    """The message about `step`, which led to `inputs`; None before the first step."""
    if step is None:
        flags = np.full(len(inputs.first), _FIRST | _VALID, np.uint8)
        return StepMessage(stream, start, number, inputs.obs, inputs.last_reward, flags, None)
    if step.mid_episode:
        return StepMessage(stream, start, number, step.obs, step.rewards, common_flags(len(step.rewards)).flags, None)
    flags = step.first * np.uint8(_FIRST) | step.valid * np.uint8(_VALID)
    flags |= step.terminated * np.uint8(_TERMINATED) | step.truncated * np.uint8(_TRUNCATED)
    finals = None
    if step.final_obs is not None and step.truncated.any():
        finals = map_tree(lambda leaf: leaf[step.truncated], step.final_obs)
    return StepMessage(stream, start, number, step.obs, step.rewards, flags, finals)


def decode_step(message: StepMessage) -> EnvStep:
    """The step in a message, without episodes: the actor reports those."""
    flags, common = message.flags, common_flags(len(message.flags))
    if flags is common.flags or flags.tobytes() == common.raw:
        never, always = common.never, common.always
        return EnvStep(message.obs, message.rewards, never, never, always, never, None, [], mid_episode=True)
    truncated, final = (flags & _TRUNCATED).astype(np.bool_), None
    if message.finals is not None:

        def spread(obs: Array, rows: Array) -> Array:
            full = obs.copy()
            full[truncated] = rows
            return full

        final = map_tree(spread, message.obs, message.finals)
    return EnvStep(
        obs=message.obs,
        rewards=message.rewards,
        terminated=(flags & _TERMINATED).astype(np.bool_),
        truncated=truncated,
        valid=(flags & _VALID).astype(np.bool_),
        first=(flags & _FIRST).astype(np.bool_),
        final_obs=final,
        episodes=[],
    )


def count_truncated(flags: Array) -> int:
    """Number of environments whose episode was truncated."""
    return int(np.count_nonzero(flags & _TRUNCATED))


class TakenStep(NamedTuple):
    """A step of an environment group: the actions, the version that chose them, and the result."""

    acted: PolicyOutput
    version: Version
    step: EnvStep


_BEFORE_ACTING = Version(0, 0)


@dataclass(slots=True)
class EnvSlot:
    """A group of environments that sends its requests together, with its inputs, recurrent state and writer.

    `acted`, `version`: the actions at `inputs`, once chosen. `unwritten`: the step that led to `inputs`, until it is in
    the unroll.
    """

    stream: Stream
    number: int
    inputs: Inputs
    state: State
    writer: UnrollWriter
    version: Version = _BEFORE_ACTING
    acted: PolicyOutput | None = None
    unwritten: TakenStep | None = None

    def decide(self, acted: PolicyOutput, version: Version) -> None:
        """Record the actions chosen for the current inputs."""
        self.acted, self.version = acted, version

    def continues(self, message: StepMessage) -> bool:
        """Whether `message` holds the result of the actions that this slot sent."""
        return self.stream == message.stream and message.number == self.number + 1 and self.acted is not None

    def repeats(self, message: StepMessage) -> bool:
        """Whether `message` repeats the last one, because its actor received no response."""
        return self.stream == message.stream and message.number == self.number

    def observe(self, message: StepMessage) -> None:
        """Advance to the inputs of `message`. `write` may run after the response, unless it completes an unroll."""
        acted = self.acted
        assert acted is not None
        step = decode_step(message)
        self.inputs = next_inputs(step, acted.actions)
        self.unwritten = TakenStep(acted, self.version, step)
        self.number, self.state, self.acted = message.number, acted.state, None

    @property
    def completes(self) -> bool:
        """Whether `write` will return an unroll."""
        return self.unwritten is not None and self.writer.ends

    def write(self) -> Unroll | None:
        """Write the last step, unless that is done; returns the unroll that it completes, if any."""
        if self.unwritten is None:
            return None
        taken, self.unwritten = self.unwritten, None
        return self.writer.write(*taken, self.inputs)


class TrajectoryAssembler:
    """The slots of all actors, by actor and environment. A new incarnation of an actor gets new slots.

    So does an actor whose steps this server has not seen, because the server was restarted. Either way the open unroll
    is dropped, so no unroll has a gap.
    """

    def __init__(
        self,
        length: int,
        initial_state: Callable[[int], State],
        no_action: Array,
        return_discount: float | None = None,
    ) -> None:
        """`no_action`: zeros like one action. `return_discount`: also write discounted returns into each unroll."""
        self._length, self._initial_state, self._no_action = length, initial_state, no_action
        self._return_discount = return_discount
        self._slots: dict[tuple[tuple[str, int], int], EnvSlot] = {}

    def receive(self, message: StepMessage) -> EnvSlot:
        """Return the slot of a message, advanced to the message's inputs."""
        key = message.stream.who, message.start
        slot = self._slots.get(key)
        if slot is not None and slot.continues(message):
            slot.observe(message)
        elif slot is None or not slot.repeats(message):
            slot = self._slots[key] = self._open(message)
        return slot

    def _open(self, message: StepMessage) -> EnvSlot:
        batch = len(message.flags)
        first = (message.flags & _FIRST).astype(np.bool_)
        no_actions = np.zeros((batch, *self._no_action.shape), self._no_action.dtype)
        inputs = Inputs(message.obs, first, no_actions, message.rewards * ~first)
        state = self._initial_state(batch)
        writer = UnrollWriter(self._length, inputs, state, self._return_discount)
        return EnvSlot(message.stream, message.number, inputs, state, writer)
