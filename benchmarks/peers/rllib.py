"""RLlib: IMPALA. The settings have the names of its own config: `env_runners`, `training`, `model`."""

from __future__ import annotations

import logging
import math
import warnings
from typing import Any

import ale_py
import gymnasium as gym
import ray
from lines import EPISODES, Lines, arguments
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

NATURE = [[32, 8, 4], [64, 4, 2], [64, 3, 1]]


def make_pong(config: Any) -> gym.Env[Any, Any]:
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformObservation

    gym.register_envs(ale_py)
    env = FrameStackObservation(AtariPreprocessing(gym.make("ALE/Pong-v5", frameskip=1), scale_obs=True), 4)
    channels_last = gym.spaces.Box(0.0, 1.0, (84, 84, 4))
    return TransformObservation(env, lambda obs: obs.transpose(1, 2, 0).astype("float32"), channels_last)


def configure(env: str, seed: int, settings: dict[str, Any]) -> IMPALAConfig:
    atari = env.startswith("ALE/")
    if atari:
        register_env("pong", make_pong)
        model = DefaultModelConfig(conv_filters=NATURE, head_fcnet_hiddens=[512], vf_share_layers=True)
    else:
        model = DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=True)
    return (
        IMPALAConfig()
        .environment("pong" if atari else env)
        .env_runners(**settings.get("env_runners", {}))
        .learners(num_learners=0, num_gpus_per_learner=0)
        .training(**settings.get("training", {}))
        .rl_module(model_config=model)
        .reporting(metrics_num_episodes_for_smoothing=100, min_time_s_per_iteration=0.2)
        .debugging(seed=seed, log_level="ERROR")
    )


def main() -> None:
    args, settings = arguments()
    warnings.simplefilter("ignore")
    # The CPUs that Ray may assign, not those of the machine: a learner, a runner and a weight server on two cores.
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = configure(args.env, args.seed, settings).build_algo()
    lines = Lines(args.until, args.seconds)
    steps, enough, returns = 0, False, []
    while not enough:
        result = algorithm.train()
        if not steps:
            lines.start()  # its processes start until here, so the clock starts a little late, with the first batch
        steps = int(result["num_env_steps_sampled_lifetime"])
        sampled = result["env_runners"]
        # Missing or NaN if no episode ended in this iteration; the previous mean then stays valid.
        if sampled.get("num_episodes_lifetime", 0) >= EPISODES and not math.isnan(sampled["episode_return_mean"]):
            returns = [float(sampled["episode_return_mean"])] * EPISODES
        enough = lines.report(steps, returns)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
