"""Environments for the tests of the runtimes. The processes of a run find them as `factories::name`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from thespis.envs.toys import Chain, Faulty

_made = 0


def faulty() -> gym.Env[Any, Any]:
    """Make an environment that fails as FAULT says, and only once if ONCE names a file."""
    return Faulty(os.environ["FAULT"], once_file=os.environ.get("ONCE"))  # type: ignore[arg-type]


class _Reset(Chain):
    """Hangs once, in its second reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        once = Path(os.environ["ONCE"])
        if self._episode == 0 and not once.exists():
            once.touch()
            time.sleep(3600.0)
        return super().reset(seed=seed, options=options)


def hangs_in_reset() -> gym.Env[Any, Any]:
    return _Reset()


class _Slow(Chain):
    """Is fast for 400 steps, then takes half a minute per step, like a paused simulator."""

    _steps = 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps > 400:
            Path(os.environ["ONCE"]).touch()
            time.sleep(30.0)
        return super().step(action)


def slow() -> gym.Env[Any, Any]:
    return _Slow()


class _Closing(Chain):
    """Takes a second to close, so that its process exits after the others."""

    def close(self) -> None:
        time.sleep(1.0)


def closing() -> gym.Env[Any, Any]:
    return _Closing()


class _FailsToClose(Chain):
    """Fails in `close`, as FAULT says."""

    def close(self) -> None:
        if os.environ["FAULT"] == "crash":
            os.abort()
        raise RuntimeError("stuck lid")


def sour() -> gym.Env[Any, Any]:
    return _FailsToClose()


class _Parent(Chain):
    """Starts two processes, one of them in a separate session, and kills them in `close`."""

    def __init__(self) -> None:
        super().__init__()
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._processes = [
            subprocess.Popen(["sleep", "3600"], start_new_session=apart, **nowhere)  # type: ignore[call-overload]
            for apart in (False, True)
        ]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def parent() -> gym.Env[Any, Any]:
    return _Parent()


class _Broken(Chain):
    def step(self, action: Any) -> Any:
        raise RuntimeError("not today")


def broken() -> gym.Env[Any, Any]:
    return _Broken()


def fails_for_sixteen() -> gym.Env[Any, Any]:
    """Make a working environment for training, and broken ones after the twelfth, for the evaluator's sixteen."""
    global _made
    _made += 1
    return _Broken() if _made > 12 else Chain()


class _Endless(Chain):
    """Appends the process id to the file RESETS at each reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with open(os.environ["RESETS"], "a") as file:
            file.write(f"{os.getpid()}\n")
        return super().reset(seed=seed, options=options)


def endless() -> gym.Env[Any, Any]:
    """Make an environment with very long episodes, for a long evaluation."""
    return _Endless(length=10**9)


class _Signs(gym.Env[Any, Any]):
    """Asks ten times per episode whether the first number is positive. A right answer earns 1.

    In the first environment that takes LOUD_FROM steps, the next LOUD_STEPS right answers earn 1000.
    """

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)
        self._steps, self._loud = 0, range(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._ask(), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        once, start = Path(os.environ["ONCE"]), int(os.environ["LOUD_FROM"])
        if self._steps == start and not once.exists():
            once.touch()
            self._loud = range(start, start + int(os.environ["LOUD_STEPS"]))
        right = int(action) == int(self._obs[0] > 0)
        reward = float(right) * (1000.0 if self._steps in self._loud else 1.0)
        return self._ask(), reward, self._steps % 10 == 0, False, {}

    def _ask(self) -> Any:
        self._obs = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self._obs


def signs() -> gym.Env[Any, Any]:
    return _Signs()


class _Lifetime(gym.Env[Any, Any]):
    """Observes its process id, and its number of steps over all episodes."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self) -> None:
        self._clock = 0

    def _look(self) -> Any:
        self._clock += 1
        return np.array([os.getpid() % 4096, self._clock], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), 1.0, self._clock % 7 == 0, False, {}


def lifetime() -> gym.Env[Any, Any]:
    return _Lifetime()


def watchful(observation_space: Any, action_space: Any) -> Any:
    """Make a network that fails on an unroll with steps of two processes, or with a missing step."""
    import torch

    from thespis.core.config import NetworkConfig
    from thespis.networks.policies import ActorCritic

    class Watching(ActorCritic):
        def forward(self, inputs: Any, state: Any) -> Any:
            if len(inputs.first) > 1:
                change = torch.diff(inputs.obs, dim=0)
                if change[..., 0].any() or (change[..., 1] != 1).any():
                    raise RuntimeError("an unroll mixes processes or lacks a step")
            return super().forward(inputs, state)

    return Watching(observation_space, action_space, NetworkConfig(hidden=(8,)))


class _Holds(Chain):
    """In a run, hangs once in its constructor, and in `close` if it was stepped."""

    def __init__(self) -> None:
        super().__init__()
        self._stepped = False
        self._trained = "thespis.runtime.env_probe" not in sys.orig_argv
        once = Path(os.environ["ONCE"])
        if self._trained and not once.exists():
            once.touch()
            time.sleep(3600.0)

    def step(self, action: Any) -> Any:
        self._stepped = True
        return super().step(action)

    def close(self) -> None:
        if self._trained and self._stepped:
            time.sleep(3600.0)


def holds() -> gym.Env[Any, Any]:
    return _Holds()
