"""A policy as a user calls it: on one observation or a batch, with the state carried along or passed by the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, State, Tree

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.acting import Stepper


class ActingPolicy:
    """Base of `TrainedPolicy`. `act` carries recurrent state along, one per row; `predict` takes and returns it."""

    def __init__(self, stepper: Stepper, spaces: Spaces) -> None:
        from thespis.envs.observations import ObservationReader
        from thespis.envs.spaces import action_row, env_actions

        self.spaces = spaces
        """The observation and action space, as the policy sees them."""
        self._stepper = stepper
        self._reader = ObservationReader(spaces.observation_space)
        self._to_env = env_actions(spaces.action_space)
        self._no_action = action_row(spaces.action_space)
        self._recurrent = bool(stepper.initial_state(1))
        self._size: int | None = None
        self._batched = False
        self._state: State = ()
        self._first: Array
        self._last_action: Array
        self.reset()

    def reset(self, rows: Any = None) -> None:
        """Open an episode: everywhere, or in a batch only in `rows`, a mask such as `terminated | truncated`."""
        if rows is None:
            self._begin(None)
            return
        self._first = self._first | self._mask("rows", rows, len(self._first))

    def act(self, obs: Any, *, last_reward: Any = 0.0, greedy: bool = True) -> Any:
        """An action for the environment from one observation, or one per row of a batch.

        Recurrent policies carry one state per row, so the rows of a batch must stay the same environments until
        `reset`. Some of them also read `last_reward`, a number or one per row.
        """
        tree, batched = self._reader.read(obs)
        size = _rows(tree)
        if self._size != size or self._batched != batched:
            if self._recurrent and self._size is not None:
                given, kept = (_said(size, batched), _said(self._size, self._batched))
                raise ThespisError(f"the policy is in the middle of {kept} and was given {given}; call reset() before")
            self._begin(size)
            self._batched = batched
        try:
            rewards = np.broadcast_to(np.asarray(last_reward, np.float32), size)
        except ValueError:
            raise ThespisError(
                f"last_reward has shape {np.shape(last_reward)}; give one number or one per row ({size})"
            ) from None
        inputs = _inputs(tree, self._first, self._last_action, rewards)
        acted = self._stepper.act(inputs, self._state, greedy)
        self._state, self._last_action = acted.state, acted.actions
        self._first = np.zeros(size, np.bool_)
        actions = self._to_env(acted.actions)
        if batched:
            return actions
        action = actions[0]
        return action.item() if isinstance(action, np.ndarray | np.generic) and not action.ndim else action

    def predict(
        self,
        observation: Any,
        state: State | None = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, State | None]:
        """Actions and the next state, as `predict` of Stable-Baselines3: nothing is remembered between calls.

        `state`: what the previous call returned, None at the start; feed-forward policies have none. `episode_start`:
        whether each row opens an episode. `deterministic`: take the likeliest action instead of drawing one. Recurrent
        policies that read the last reward see 0 here; `act` can be told it.
        """
        tree, batched = self._reader.read(observation)
        size = _rows(tree)
        parts, last_action, first = self._given(state, size)
        if episode_start is not None:
            first = first | self._mask("episode_start", episode_start, size)
        inputs = _inputs(tree, first, last_action, np.zeros(size, np.float32))
        acted = self._stepper.act(inputs, parts, deterministic)
        actions = self._to_env(acted.actions)
        if not batched:
            actions = actions.squeeze(0) if isinstance(actions, np.ndarray) else actions[0]
        return actions, (*acted.state, acted.actions) if self._recurrent else None

    def _given(self, state: State | None, size: int) -> tuple[State, Array, Array]:
        """The recurrent state of `size` rows, their last actions, and which of them open an episode."""
        fresh, nothing = self._stepper.initial_state(size), self._actions(size)
        if state is None or not self._recurrent:
            return fresh, nothing, np.ones(size, np.bool_)
        expected = [part.shape for part in (*fresh, nothing)]
        shapes = [np.shape(part) for part in state] if isinstance(state, tuple | list) else type(state).__name__
        if shapes != expected:
            raise ThespisError(
                f"state is of shapes {shapes}, for {size} rows it is {expected}; "
                "give what predict returned for the same rows, or None at the start"
            )
        *parts, last_action = (np.asarray(part) for part in state)
        return tuple(parts), last_action, np.zeros(size, np.bool_)

    def _begin(self, size: int | None) -> None:
        self._size, self._batched = size, False
        self._state = self._stepper.initial_state(size or 1)
        self._first = np.ones(size or 1, np.bool_)
        self._last_action = self._actions(size or 1)

    def _actions(self, size: int) -> Array:
        return np.repeat(self._no_action[None], size, 0)

    def _mask(self, name: str, given: Any, size: int) -> Array:
        mask = np.asarray(given)
        if not mask.ndim and size == 1:
            mask = mask[None]
        if mask.shape != (size,) or mask.dtype.kind not in "biuf":
            raise ThespisError(f"{name} has shape {mask.shape} and dtype {mask.dtype}; give one bool per row ({size})")
        return mask.astype(np.bool_)


def _inputs(tree: Tree, first: Array, last_action: Array, last_reward: Array) -> Inputs:
    """What opens an episode has no last action or reward."""
    keep = ~first
    shaped = keep.reshape(-1, *(1,) * (last_action.ndim - 1))
    return Inputs(tree, first, last_action * shaped, (last_reward * keep).astype(np.float32))


def _rows(tree: Tree) -> int:
    return len(next(iter(tree.values())) if isinstance(tree, dict) else tree)


def _said(size: int, batched: bool) -> str:
    return f"episodes of a batch of {size}" if batched else "an episode of one observation at a time"
