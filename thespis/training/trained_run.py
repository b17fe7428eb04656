"""A run on disk: its summary, its config and its trained policy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.config import Experiment
from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.system.files import read_bytes
from thespis.core.user_code import Spec
from thespis.training.importable import validate_env_importable
from thespis.training.policy import ActingPolicy

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.policy_runner import PolicyRunner
    from thespis.training.evaluation import Evaluation


class RunFailed(Exception):
    """Raised when a run ends with an error. Its last checkpoint holds the weights."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message)
        self.path = path


def load(path: str | PathLike[str], *, trust: bool = False) -> TrainedRun:
    """Load an earlier run from its directory.

    A run names the Python code of its environment. `trust` executes that code regardless of its origin; code that you
    have trained with on this machine needs no `trust`.
    """
    return TrainedRun(str(path), trust=trust)


class TrainedRun:
    """A run on disk: `path`, `summary`, `config`, the trained `policy`, and `evaluate`."""

    def __init__(self, path: Path | str, *, trust: bool = False) -> None:
        """`trust`: execute the code that config.yaml names, regardless of its origin; your own code needs no trust."""
        self.path = Path(path)
        self._trust = trust

    def __repr__(self) -> str:
        return f"TrainedRun({str(self.path)!r})"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: how the run ended, and its results."""
        try:
            summary: dict[str, Any] = json.loads(read_bytes(self.path / "summary.json"))
        except FileNotFoundError:
            raise ThespisError(
                f"{self.path} has no summary.json: the run is not finished, or the directory is not a run"
            ) from None
        except (OSError, ValueError) as error:
            raise ThespisError(f"{self.path / 'summary.json'} cannot be read: {error}") from None
        return summary

    @cached_property
    def config(self) -> Experiment:
        """The settings of the run, from config.yaml. Untrusted code raises an error."""
        from thespis.runs import trust
        from thespis.runs.directory import RunDirectory
        from thespis.training.registry import config_of_run, load_config

        name, data = load_config(RunDirectory.open(self.path).config)
        if not self._trust:
            trust.check_trusted(self.path, trust.code_of(name, data))
        return config_of_run(self.path, name, data)

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The policy of the newest valid checkpoint."""
        return self.load_policy("newest")

    def load_policy(self, which: str) -> TrainedPolicy:
        """Load the policy of the `newest` or the `best` checkpoint."""
        from thespis.runs.checkpoints import Checkpoints

        cfg = self.config
        return TrainedPolicy(cfg, Checkpoints(self.path / "checkpoints", keep=1).require(which), self.spaces)

    @cached_property
    def spaces(self) -> Spaces:
        """The observation and action space, as saved at the start of the run; no environment is built."""
        from thespis.envs.make import describe_env
        from thespis.runs.spaces import written_spaces

        return written_spaces(self.path) or describe_env(self.env_config())

    def env_config(self, env: Spec | None = None, wrappers: Sequence[Spec] | None = None) -> EnvConfig:
        """Return the environment of the run, with `env` or `wrappers` replaced if given."""
        cfg = self.config.env_config
        if env is not None:
            cfg = dataclasses.replace(cfg, env=env)
        if wrappers is not None:
            cfg = dataclasses.replace(cfg, wrappers=tuple(wrappers))
        validate_env_importable(cfg)
        return cfg

    def evaluate(
        self,
        episodes: int = 10,
        env: Any = None,
        greedy: bool = True,
        seed: int = 0,
        checkpoint: str = "newest",
    ) -> Evaluation:
        """Play whole episodes with the policy, in the run's environment or in `env` (an id or a function)."""
        from thespis.training.evaluation import evaluate

        return evaluate(self, episodes, env=env, greedy=greedy, seed=seed, checkpoint=checkpoint)


class TrainedPolicy(ActingPolicy):
    """The policy of a checkpoint, with `act` for one observation or a batch and `predict` as in Stable-Baselines3."""

    def __init__(self, cfg: Experiment, checkpoint: Path, spaces: Spaces) -> None:
        from thespis.runs.checkpoints import policy_weights

        weights = policy_weights(checkpoint)
        if weights is None:
            raise ThespisError(f"{checkpoint} holds no weights, so there is no policy")
        self.checkpoint = checkpoint
        self._algorithm = cfg.learned
        self.network = cfg.learned.build_network(spaces, seed=0)
        """The trained network, a torch module."""
        runner = self.policy_runner(cfg.seed)
        runner.load(weights)
        super().__init__(runner, spaces)

    def policy_runner(self, seed: int) -> PolicyRunner:
        """Return a policy runner for this network and a batch of environments; `seed` seeds its action sampling."""
        runner: PolicyRunner = self._algorithm.build_policy_runner(self.network, np.random.default_rng(seed))
        return runner
