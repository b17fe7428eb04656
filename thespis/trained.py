"""A finished run: what it reached, and the policy it learned."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.config import Experiment, resolve
from thespis.errors import ThespisError
from thespis.types import Inputs, State, Tree

if TYPE_CHECKING:
    from thespis.networks.acting import Stepper


class RunFailed(Exception):
    """A run ended with an error. What it had learned is in its last checkpoint."""

    def __init__(self, what: str, path: Path) -> None:
        super().__init__(what)
        self.path = path


class Trained:
    """A run on disk: `path`, `summary`, `config` and the trained `policy`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"Trained({str(self.path)!r})"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """How the run ended: the content of summary.json."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except FileNotFoundError:
            raise ThespisError(f"{self.path} has no summary.json: the run has not ended, or is no run") from None
        return summary

    @cached_property
    def config(self) -> Experiment:
        from thespis.launch import defaults, load_config
        from thespis.runs.directory import RunDirectory

        name, data = load_config(RunDirectory.open(self.path).config)
        return defaults(name, None, data)

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The policy of the newest valid checkpoint."""
        return self.load_policy("newest")

    def load_policy(self, which: str) -> TrainedPolicy:
        """The policy of the `newest` or the `best` checkpoint."""
        from thespis.runs.checkpoints import Checkpoints

        cfg = self.config
        checkpoints = Checkpoints(self.path / "checkpoints", keep=1)
        found = checkpoints.best() if which == "best" else checkpoints.newest_valid().path
        if found is None:
            raise ThespisError(f"{self.path} has no valid checkpoint to load a policy from")
        return TrainedPolicy(cfg, found)


class TrainedPolicy:
    """Acts on one observation at a time, carrying its recurrent state along. `reset` opens an episode."""

    def __init__(self, cfg: Experiment, checkpoint: Path) -> None:
        from thespis.architectures.parts import network
        from thespis.envs.make import describe
        from thespis.envs.spaces import action_row, env_actions
        from thespis.runs.checkpoints import policy_weights

        weights = policy_weights(checkpoint)
        if weights is None:
            raise ThespisError(f"{checkpoint} holds no weights, so no policy")
        self.checkpoint = checkpoint
        spaces = describe(resolve(cfg.env))
        chosen = getattr(cfg, "policy_network", None) or cfg.network  # type: ignore[attr-defined]
        self.network = network(chosen, spaces, seed=0)
        """The trained network itself, a torch module."""
        self._stepper = self.stepper(cfg.seed)
        self._stepper.load(weights)
        self._to_env = env_actions(spaces.action_space)
        self._no_action = action_row(spaces.action_space)[None]
        self.reset()

    def stepper(self, seed: int) -> Stepper:
        """The same network for many environments at once, drawing actions from a random stream of its own."""
        from thespis.networks.acting import Stepper

        return Stepper(self.network, np.random.default_rng(seed))

    def reset(self) -> None:
        """Forget everything: the next observation opens an episode."""
        self._state: State = self._stepper.initial_state(1)
        self._first = True
        self._last_action = self._no_action

    def act(self, obs: Any, *, last_reward: float = 0.0, greedy: bool = True) -> Any:
        """An action for the environment, from one observation of it. Recurrent policies also read `last_reward`."""
        acted = self._stepper.act(self._inputs(obs, last_reward), self._state, greedy)
        self._state, self._first, self._last_action = acted.state, False, acted.actions
        action = self._to_env(acted.actions)[0]
        return action.item() if isinstance(action, np.ndarray | np.generic) and not action.ndim else action

    def _inputs(self, obs: Any, last_reward: float) -> Inputs:
        tree: Tree = (
            {k: np.asarray(v)[None] for k, v in obs.items()} if isinstance(obs, dict) else np.asarray(obs)[None]
        )
        return Inputs(tree, np.array([self._first]), self._last_action, np.array([last_reward], np.float32))
