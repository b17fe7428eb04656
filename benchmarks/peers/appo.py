"""Sample Factory: APPO. The settings have the names of its own command line."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import gymnasium as gym
from lines import Lines, arguments
from sample_factory.algo.runners.runner import AlgoObserver, Runner
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from sf_examples.atari.atari_params import atari_override_defaults
from sf_examples.atari.atari_utils import make_atari_env

PONG = "PongNoFrameskip-v4"
"""Environments by Sample Factory's own names; its wrappers skip frames."""


class Report(AlgoObserver):
    """Print a line after each round of training. Steps are those that the learner received, as in its own figures."""

    def __init__(self, lines: Lines) -> None:
        self._lines, self._began = lines, False

    def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
        if not self._began:
            # It does not report its first step, so its clock starts a little late, with the first update.
            self._began = True
            self._lines.start()
        if self._lines.due:
            returns = runner.policy_avg_stats.get("reward", [()])[0]
            if self._lines.report(sum(runner.env_steps.values()), list(returns)):
                runner.cfg.train_for_env_steps = 0


def make_env(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    return gym.make(name, render_mode=render_mode)


def make_pong(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    if PONG not in gym.registry:  # ale-py registers itself only with newer versions of Gymnasium
        kwargs = {"game": "pong", "frameskip": 1, "repeat_action_probability": 0.25, "full_action_space": False}
        gym.register(PONG, entry_point="ale_py.env:AtariEnv", kwargs=kwargs, max_episode_steps=108_000)
    return make_atari_env("atari_pong", cfg, env_config, render_mode)


def main() -> None:
    args, settings = arguments()
    atari = args.env.startswith("ALE/")
    name = "atari_pong" if atari else args.env
    register_env(name, make_pong if atari else make_env)
    with tempfile.TemporaryDirectory() as directory:
        fixed = {
            "algo": "APPO",
            "env": name,
            "seed": args.seed,
            "device": "cpu",
            "train_dir": directory,
            "experiment": "peer",
            "restart_behavior": "overwrite",
            "train_for_env_steps": 1_000_000_000,
            "save_every_sec": 100_000,
            "stats_avg": 100,
            "summaries_use_frameskip": False,
            "use_rnn": False,
            "recurrence": 1,
        }
        words = [f"--{key}={value}" for key, value in {**fixed, **settings}.items() if not isinstance(value, list)]
        for key, value in settings.items():
            if isinstance(value, list):
                words += [f"--{key}", *map(str, value)]
        parser, partial = parse_sf_args(words)
        if atari:
            atari_override_defaults(partial.env, parser)
        _, runner = make_runner(parse_full_cfg(parser, words))
        runner.register_observer(Report(Lines(args.until, args.seconds)))
        runner.init()
        runner.run()
        time.sleep(0.5)  # its processes write to the directory until they exit


if __name__ == "__main__":
    main()
