"""A finished run: what it reached, and the policy it learned."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thespis.core.config import Experiment
from thespis.core.env_config import EnvConfig
from thespis.core.errors import ThespisError
from thespis.core.system.files import read_bytes
from thespis.core.user_code import Spec
from thespis.training.lost import refuse_lost_env
from thespis.training.policy import ActingPolicy

if TYPE_CHECKING:
    from thespis.envs.spaces import Spaces
    from thespis.networks.acting import Stepper
    from thespis.training.evaluation import Evaluation


class RunFailed(Exception):
    """A run ended with an error. What it had learned is in its last checkpoint."""

    def __init__(self, what: str, path: Path) -> None:
        super().__init__(what)
        self.path = path


class Trained:
    """A run on disk: `path`, `summary`, `config`, the trained `policy`, and `evaluate`."""

    def __init__(self, path: Path | str, *, trust: bool = False) -> None:
        """`trust`: run the code that its config.yaml names, whoever made it; your own code needs no trust."""
        self.path = Path(path)
        self._trust = trust

    def __repr__(self) -> str:
        return f"Trained({str(self.path)!r})"

    @cached_property
    def summary(self) -> dict[str, Any]:
        """How the run ended: the content of summary.json."""
        try:
            summary: dict[str, Any] = json.loads(read_bytes(self.path / "summary.json"))
        except FileNotFoundError:
            raise ThespisError(f"{self.path} has no summary.json: the run has not ended, or is no run") from None
        except (OSError, ValueError) as error:
            raise ThespisError(f"{self.path / 'summary.json'} cannot be read: {error}") from None
        return summary

    @cached_property
    def config(self) -> Experiment:
        from thespis.runs import trust
        from thespis.runs.directory import RunDirectory
        from thespis.training.registry import config_of_run, load_config

        name, data = load_config(RunDirectory.open(self.path).config)
        if not self._trust:
            trust.check(self.path, trust.code_of(name, data))
        return config_of_run(self.path, name, data)

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The policy of the newest valid checkpoint."""
        return self.load_policy("newest")

    def load_policy(self, which: str) -> TrainedPolicy:
        """The policy of the `newest` or the `best` checkpoint."""
        from thespis.runs.checkpoints import Checkpoints

        cfg = self.config
        return TrainedPolicy(cfg, Checkpoints(self.path / "checkpoints", keep=1).require(which), self.spaces)

    @cached_property
    def spaces(self) -> Spaces:
        """What the policy sees and does, as written down when the run began: no environment is made to know it."""
        from thespis.envs.make import describe
        from thespis.runs.spaces import written_spaces

        return written_spaces(self.path) or describe(self.env_config())

    def env_config(self, env: Spec | None = None, wrappers: Sequence[Spec] | None = None) -> EnvConfig:
        """The environment to play in: the run's own, or with another `env` or other `wrappers` in it."""
        cfg = self.config.env_config
        if env is not None:
            cfg = dataclasses.replace(cfg, env=env)
        if wrappers is not None:
            cfg = dataclasses.replace(cfg, wrappers=tuple(wrappers))
        refuse_lost_env(cfg)
        return cfg

    def evaluate(
        self,
        episodes: int = 10,
        env: Any = None,
        greedy: bool = True,
        seed: int = 0,
        checkpoint: str = "newest",
    ) -> Evaluation:
        """Play whole episodes with the policy, in the environment it was trained in or in `env` (an id or function)."""
        from thespis.training.evaluation import evaluate

        return evaluate(self, episodes, env=env, greedy=greedy, seed=seed, checkpoint=checkpoint)


class TrainedPolicy(ActingPolicy):
    """The policy of a checkpoint: `act` on one observation or a batch, `predict` as in Stable-Baselines3."""

    def __init__(self, cfg: Experiment, checkpoint: Path, spaces: Spaces) -> None:
        from thespis.runs.checkpoints import policy_weights

        weights = policy_weights(checkpoint)
        if weights is None:
            raise ThespisError(f"{checkpoint} holds no weights, so no policy")
        self.checkpoint = checkpoint
        self._algorithm = cfg.learned
        self.network = cfg.learned.build_network(spaces, seed=0)
        """The trained network itself, a torch module."""
        acting = self.stepper(cfg.seed)
        acting.load(weights)
        super().__init__(acting, spaces)

    def stepper(self, seed: int) -> Stepper:
        """The same network for many environments at once, drawing actions from a random stream of its own."""
        stepper: Stepper = self._algorithm.build_stepper(self.network, np.random.default_rng(seed))
        return stepper
