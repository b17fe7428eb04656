"""Writers cut the steps of actors into items. Either side of an edge can hold one."""

from __future__ import annotations

import numpy as np

from thespis.core.types import (
    Array,
    Inputs,
    PolicyOutput,
    State,
    Tree,
    Unroll,
    Version,
    empty_tree,
    map_tree,
    tree_leaves,
)
from thespis.envs.autoreset import EnvStep


class UnrollWriter:
    """Collects T steps of B environments into an `Unroll`; consecutive unrolls share one observation.

    unroll k     inputs 0 1 2 ... T            (T is only for bootstrapping)
    unroll k+1                    0 1 2 ... T
    """

    def __init__(self, length: int, inputs: Inputs, state: State, return_discount: float | None = None) -> None:
        """`inputs`, `state`: of the first step. `return_discount`: also write discounted returns."""
        self._length = length
        self._t = 0
        self._version: Version | None = None  # of the last step
        self._return_discount = return_discount
        self._carry: Array = np.zeros(len(inputs.first))
        self.open(inputs, state)

    def write(self, acted: PolicyOutput, version: Version, step: EnvStep, inputs: Inputs) -> Unroll | None:
        """Add one step: the actions, their result and the next inputs; returns a completed unroll, if any."""
        unroll, t = self._unroll, self._t
        unroll.actions[t], unroll.behaviour_logp[t] = acted.actions, acted.logp
        if acted.q is not None:
            if unroll.q is None:
                unroll.q = np.empty((self._length, *acted.q.shape), np.float32)
            unroll.q[t] = acted.q
        unroll.rewards[t] = step.rewards
        if not step.mid_episode:
            self._flag(step)
        if version is not self._version:
            self._version = version
            unroll.versions[t:] = version.packed()
        self._t = t + 1
        self._put(inputs)
        if self._t < self._length:
            return None
        self._close()
        self.open(inputs, acted.state)
        return unroll

    @property
    def ends(self) -> bool:
        """Whether the next step is the last of the unroll."""
        return self._t + 1 == self._length

    def cut(self) -> Unroll:
        """Return the steps since the last unroll as a shorter one; call `open` before the next step."""
        unroll, t = self._unroll, self._t
        for name in ("actions", "rewards", "terminated", "truncated", "valid", "behaviour_logp", "versions"):
            setattr(unroll, name, getattr(unroll, name)[:t])
        if unroll.q is not None:
            unroll.q = unroll.q[:t]
        stored = unroll.inputs
        stored.obs = map_tree(lambda leaf: leaf[: t + 1], stored.obs)
        for name in ("first", "last_action", "last_reward"):
            setattr(stored, name, getattr(stored, name)[: t + 1])
        self._close()
        return unroll

    def open(self, inputs: Inputs, state: State) -> None:
        """Start an unroll at these inputs; `write` does so itself after a full one."""
        shape = (self._length, len(inputs.first))
        self._unroll = Unroll(
            inputs=Inputs(
                obs=empty_tree((self._length + 1,), inputs.obs),
                first=np.zeros((self._length + 1, *inputs.first.shape), np.bool_),
                last_action=np.empty((self._length + 1, *inputs.last_action.shape), inputs.last_action.dtype),
                last_reward=np.empty((self._length + 1, *inputs.last_reward.shape), np.float32),
            ),
            actions=np.empty((self._length, *inputs.last_action.shape), inputs.last_action.dtype),
            rewards=np.empty(shape, np.float32),
            terminated=np.zeros(shape, np.bool_),
            truncated=np.zeros(shape, np.bool_),
            valid=np.ones(shape, np.bool_),
            behaviour_logp=np.empty(shape, np.float32),
            state=tuple(part.copy() for part in state),
            versions=np.empty(shape, np.int64),
            final_index=np.empty((0, 2), np.int64),
            final_obs=map_tree(lambda leaf: leaf[:0].copy(), inputs.obs),
        )
        self._finals: list[tuple[Array, Tree]] = []
        self._version = None
        self._t = 0
        self._put(inputs)
        self._unroll.inputs.first[0] = inputs.first
        self._unroll.inputs.last_action[0] = inputs.last_action
        self._unroll.inputs.last_reward[0] = inputs.last_reward

    def _put(self, inputs: Inputs) -> None:
        stored, t = self._unroll.inputs, self._t
        if isinstance(stored.obs, dict):
            for store, value in zip(stored.obs.values(), tree_leaves(inputs.obs), strict=True):
                store[t] = value
        else:
            stored.obs[t] = inputs.obs

    def _flag(self, step: EnvStep) -> None:
        """Record which episodes ended and started; a new unroll defaults to neither."""
        unroll, t = self._unroll, self._t
        unroll.terminated[t], unroll.truncated[t] = step.terminated, step.truncated
        unroll.valid[t], unroll.inputs.first[t + 1] = step.valid, step.first
        if step.final_obs is not None and step.truncated.any():
            self._keep_finals(step.final_obs, step.truncated)

    def _keep_finals(self, final_obs: Tree, truncated: Array) -> None:
        (envs,) = np.nonzero(truncated)
        index = np.stack([np.full_like(envs, self._t), envs], axis=1)
        self._finals.append((index, map_tree(lambda leaf: leaf[envs].copy(), final_obs)))

    def _close(self) -> None:
        # The unroll holds all last actions and rewards by now; filling them in one operation is cheaper.
        unroll, keep = self._unroll, ~self._unroll.inputs.first[1:]
        np.multiply(unroll.rewards, keep, out=unroll.inputs.last_reward[1:])
        shaped = keep.reshape(*keep.shape, *(1,) * (unroll.actions.ndim - 2))
        np.multiply(unroll.actions, shaped, out=unroll.inputs.last_action[1:])
        if self._return_discount is not None:
            ended = self._unroll.terminated | self._unroll.truncated
            returns, self._carry = discounted_returns(self._unroll.rewards, ended, self._carry, self._return_discount)
            self._unroll.returns = returns
        if self._finals:
            self._unroll.final_index = np.concatenate([index for index, _ in self._finals])
            self._unroll.final_obs = map_tree(lambda *leaves: np.concatenate(leaves), *(obs for _, obs in self._finals))


def discounted_returns(rewards: Array, ended: Array, carry: Array, discount: float) -> tuple[Array, Array]:
    """Discounted sum of past rewards of each stream: `[T, B]` returns, and the `[B]` carry for the next unroll.

    `ended[t]`: bool, the episode ended with `rewards[t]`. `carry`: zeros at first. It stays with the environments,
    because unrolls of several actors reach a learner interleaved.
    """
    returns = np.empty(rewards.shape, np.float32)
    for t in range(len(rewards)):
        returns[t] = rewards[t] + discount * carry
        carry = np.where(ended[t], 0.0, returns[t])
    return returns, carry


def concatenate(unrolls: list[Unroll]) -> Unroll:
    """Concatenate unrolls of equal length along the environment axis."""
    if len(unrolls) == 1:
        return unrolls[0]

    def concat(*leaves: Array) -> Array:
        return np.concatenate(leaves, axis=1)

    offsets = np.cumsum([0, *(unroll.rewards.shape[1] for unroll in unrolls[:-1])])
    index = [unroll.final_index + np.array([0, offset]) for unroll, offset in zip(unrolls, offsets, strict=True)]
    inputs = [unroll.inputs for unroll in unrolls]
    returns = [unroll.returns for unroll in unrolls if unroll.returns is not None]
    q = [unroll.q for unroll in unrolls if unroll.q is not None]
    return Unroll(
        inputs=Inputs(
            obs=map_tree(concat, *(part.obs for part in inputs)),
            first=concat(*(part.first for part in inputs)),
            last_action=concat(*(part.last_action for part in inputs)),
            last_reward=concat(*(part.last_reward for part in inputs)),
        ),
        actions=concat(*(unroll.actions for unroll in unrolls)),
        rewards=concat(*(unroll.rewards for unroll in unrolls)),
        terminated=concat(*(unroll.terminated for unroll in unrolls)),
        truncated=concat(*(unroll.truncated for unroll in unrolls)),
        valid=concat(*(unroll.valid for unroll in unrolls)),
        behaviour_logp=concat(*(unroll.behaviour_logp for unroll in unrolls)),
        state=tuple(np.concatenate(parts) for parts in zip(*(unroll.state for unroll in unrolls), strict=True)),
        versions=concat(*(unroll.versions for unroll in unrolls)),
        final_index=np.concatenate(index),
        final_obs=map_tree(lambda *leaves: np.concatenate(leaves), *(unroll.final_obs for unroll in unrolls)),
        returns=concat(*returns) if returns else None,
        q=concat(*q) if q else None,
    )
