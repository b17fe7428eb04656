"""The policy interface for users: actions for one observation or a batch, with or without implicit recurrent state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Inputs, State, Tree

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.policy_runner import PolicyRunner


class ActingPolicy:
    """Base of `TrainedPolicy`. `act` keeps the recurrent state of each row; `predict` takes and returns it."""

    def __init__(self, runner: PolicyRunner, spaces: Spaces) -> None:
        from thespis.envs.observations import ObservationReader
        from thespis.envs.spaces import action_row, env_actions

        self.spaces = spaces
        """The observation and action space, as the policy sees them."""
        self._runner = runner
        self._reader = ObservationReader(spaces.observation_space)
        self._to_env = env_actions(spaces.action_space)
        self._no_action = action_row(spaces.action_space)
        self._recurrent = bool(runner.initial_state(1))
        self._size: int | None = None
        self._batched = False
        self._state: State = ()
        self._first: Array
        self._last_action: Array
        self.reset()

    def reset(self, rows: Any = None) -> None:
        """Start new episodes in all rows, or in the rows of the mask `rows`, e.g. `terminated | truncated`."""
        if rows is None:
            self._start(None)
            return
        self._first = self._first | self._mask("rows", rows, len(self._first))

    def act(self, obs: Any, *, last_reward: Any = 0.0, greedy: bool = True) -> Any:
        """Return an action for one observation, or one action per row of a batch.

        A recurrent policy keeps one state per row, so each row must stay the same environment until `reset`. Some
        recurrent policies also read `last_reward`, a number or one per row.
        """
        tree, batched = self._reader.read(obs)
        size = _rows(tree)
        if self._size != size or self._batched != batched:
            if self._recurrent and self._size is not None:
                given, kept = (_describe(size, batched), _describe(self._size, self._batched))
                raise ThespisError(f"the policy is in the middle of {kept} but got {given}; call reset() first")
            self._start(size)
            self._batched = batched
        try:
            rewards = np.broadcast_to(np.asarray(last_reward, np.float32), size)
        except ValueError:
            raise ThespisError(
                f"last_reward has shape {np.shape(last_reward)}; give one number or one per row ({size})"
            ) from None
        inputs = _inputs(tree, self._first, self._last_action, rewards)
        acted = self._runner.act(inputs, self._state, greedy)
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
        """Return actions and the next state, as `predict` of Stable-Baselines3 does. The policy keeps no state.

        `state`: the state that the previous call returned, or None at the start; feed-forward policies ignore it.
        `episode_start`: whether each row starts an episode. `deterministic`: take the most likely action instead of
        sampling one. Recurrent policies that read the last reward get 0; use `act` to pass `last_reward`.
        """
        tree, batched = self._reader.read(observation)
        size = _rows(tree)
        parts, last_action, first = self._read_state(state, size)
        if episode_start is not None:
            first = first | self._mask("episode_start", episode_start, size)
        inputs = _inputs(tree, first, last_action, np.zeros(size, np.float32))
        acted = self._runner.act(inputs, parts, deterministic)
        actions = self._to_env(acted.actions)
        if not batched:
            actions = actions.squeeze(0) if isinstance(actions, np.ndarray) else actions[0]
        return actions, (*acted.state, acted.actions) if self._recurrent else None

    def _read_state(self, state: State | None, size: int) -> tuple[State, Array, Array]:
        """Return the recurrent state of `size` rows, their last actions, and a mask of episode starts."""
        fresh, nothing = self._runner.initial_state(size), self._actions(size)
        if state is None or not self._recurrent:
            return fresh, nothing, np.ones(size, np.bool_)
        expected = [part.shape for part in (*fresh, nothing)]
        shapes = [np.shape(part) for part in state] if isinstance(state, tuple | list) else type(state).__name__
        if shapes != expected:
            raise ThespisError(
                f"state has shapes {shapes}, but {size} rows need {expected}; "
                "give the state that predict returned for the same rows, or None at the start"
            )
        *parts, last_action = (np.asarray(part) for part in state)
        return tuple(parts), last_action, np.zeros(size, np.bool_)

    def _start(self, size: int | None) -> None:
        self._size, self._batched = size, False
        self._state = self._runner.initial_state(size or 1)
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
    """Build the inputs of the network. The last action and reward are zero in rows that start an episode."""
    keep = ~first
    shaped = keep.reshape(-1, *(1,) * (last_action.ndim - 1))
    return Inputs(tree, first, last_action * shaped, (last_reward * keep).astype(np.float32))


def _rows(tree: Tree) -> int:
    return len(next(iter(tree.values())) if isinstance(tree, dict) else tree)


def _describe(size: int, batched: bool) -> str:
    return f"episodes of a batch of {size}" if batched else "an episode of one observation at a time"
