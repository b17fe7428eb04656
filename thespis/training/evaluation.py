"""Evaluation of a trained policy: plays episodes and records videos."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiDiscrete, Tuple

from thespis.core.errors import ThespisError
from thespis.core.types import Array, Episode
from thespis.core.user_code import Spec
from thespis.envs.autoreset import Environments
from thespis.envs.infos import means
from thespis.envs.inputs import first_inputs, next_inputs
from thespis.envs.make import make_envs
from thespis.envs.spaces import AnySpace
from thespis.training.trained_run import TrainedPolicy, TrainedRun


@dataclass(slots=True)
class Results:
    """Played episodes. `cut`: indices of truncated episodes. `frames`: the first episode, if a video was requested."""

    checkpoint: str
    fps: int
    episodes: list[Episode] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    frames: list[Array] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Returns and lengths of played episodes, in order. A return is the sum of the environment's raw rewards."""

    returns: list[float]
    lengths: list[int]
    checkpoint: str
    """Name of the checkpoint that holds the policy."""
    info: dict[str, float] = field(default_factory=dict)
    """Means of `is_success` and the --track-info names, from the last `info` of each episode."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    @property
    def mean_length(self) -> float:
        """Mean episode length."""
        return float(np.mean(self.lengths))


def evaluate(
    trained: TrainedRun,
    episodes: int = 10,
    *,
    env: Spec | None = None,
    greedy: bool = True,
    seed: int = 0,
    checkpoint: str = "newest",
) -> Evaluation:
    """Play whole episodes and return the result of each."""
    played = play(trained, episodes, env=env, greedy=greedy, seed=seed, checkpoint=checkpoint)
    rewards, lengths = zip(*((episode.reward, episode.length) for episode in played.episodes), strict=True)
    return Evaluation([*map(float, rewards)], [*lengths], played.checkpoint, means(played.episodes))


def play(
    trained: TrainedRun,
    episodes: int,
    *,
    env: Spec | None = None,
    checkpoint: str = "newest",
    greedy: bool = True,
    seed: int = 0,
    film: bool = False,
    wrappers: Sequence[Spec] | None = None,
    max_steps: int | None = None,
) -> Results:
    """Play whole episodes, one after another, in the environment of the run or in `env`.

    Episodes are truncated after `max_steps` (default: `eval_max_steps` of the run), because some never end. `film`
    renders the first episode.
    """
    if episodes < 1:
        raise ThespisError(f"--episodes is {episodes}; give at least 1")
    if max_steps is not None and max_steps < 1:
        raise ThespisError(f"--max-steps is {max_steps}; give at least 1")
    cfg = trained.env_config(env, wrappers)
    policy = trained.load_policy(checkpoint)
    runner = policy.policy_runner(seed)
    envs = make_envs(cfg, 1, render_mode="rgb_array" if film else None)
    envs.track(trained.config.track_info)
    longest = trained.config.eval_max_steps if max_steps is None else max_steps
    results = Results(policy.checkpoint.name, fps=envs.render_fps)
    try:
        _check_spaces(policy, envs)  # the code of the run's environment may have changed since
        inputs, state = first_inputs(envs.reset(seed), envs), runner.initial_state(1)
        so_far = Episode(0.0, 0)
        while len(results.episodes) < episodes:
            if film and not results.episodes:
                results.frames.append(envs.render())
            acted = runner.act(inputs, state, greedy)
            step = envs.step(acted.actions)
            results.episodes += step.episodes
            inputs, state = next_inputs(step, acted.actions), acted.state
            if step.episodes:
                so_far = Episode(0.0, 0)
            elif step.valid[0]:
                so_far = Episode(so_far.reward + float(step.rewards[0]), so_far.length + 1)
            if so_far.length >= longest:
                results.cut.add(len(results.episodes))
                results.episodes.append(so_far)
                so_far = Episode(0.0, 0)
                obs = envs.reset(seed + len(results.episodes))
                inputs, state = first_inputs(obs, envs), runner.initial_state(1)
    finally:
        envs.close()
    return results


def _check_spaces(policy: TrainedPolicy, envs: Environments) -> None:
    """Reject an environment that does not fit the policy. Bounds may differ; shapes and numbers of actions may not."""
    for name in ("observation_space", "action_space"):
        trained, here = getattr(policy.spaces, name), getattr(envs, name)
        if _form(trained) != _form(here):
            raise ThespisError(f"the environment has {name.replace('_', ' ')} {here}, but the policy has {trained}")


def _form(space: AnySpace) -> object:
    """The properties that two spaces must share for one network to fit both."""
    if isinstance(space, Dict):
        return {key: _form(part) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return [_form(part) for part in space.spaces]
    if isinstance(space, Discrete | MultiDiscrete):
        return np.ravel(space.nvec if isinstance(space, MultiDiscrete) else space.n).tolist(), space.shape
    return type(space).__name__, space.shape, str(space.dtype)


def check_video(path: Path) -> None:
    """Reject an unsupported video format before any episode is played."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ThespisError(f"--video {path}: give a name that ends in .gif or .mp4")
    if path.suffix.lower() == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ThespisError('mp4 needs a codec: pip install "thespis[video]", or write a .gif')


def write_video(path: Path, frames: list[Array], fps: int) -> None:
    """Write frames, uint8 `[H, W, 3]`, as .gif or .mp4."""
    if path.suffix.lower() == ".gif":
        from PIL import Image

        # Viewers slow a gif down if a frame lasts less than 20 ms, so skip frames instead.
        skip = max(1, round(fps / 30))
        images = [Image.fromarray(frame) for frame in frames[::skip]]
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 * skip / fps), loop=0)
    else:
        import imageio.v2 as imageio

        imageio.mimwrite(path, [np.ascontiguousarray(frame) for frame in frames], fps=fps, macro_block_size=2)
