"""Playing episodes with a trained policy, and filming them."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from thespis.config import resolve
from thespis.envs.make import make
from thespis.errors import ThespisError
from thespis.roles.actor import first_inputs, next_inputs
from thespis.trained import Trained
from thespis.types import Array, Episode


@dataclass(slots=True)
class Results:
    """What was played; `frames` of the first episode if it was filmed."""

    checkpoint: str
    fps: int
    episodes: list[Episode] = field(default_factory=list)
    frames: list[Array] = field(default_factory=list)


def play(
    trained: Trained,
    episodes: int,
    *,
    checkpoint: str = "newest",
    greedy: bool = True,
    seed: int = 0,
    film: bool = False,
) -> Results:
    """Play whole episodes, one after another, in an environment like the one trained in."""
    if episodes < 1:
        raise ThespisError(f"--episodes is {episodes}; give at least 1")
    policy = trained.load_policy(checkpoint)
    stepper = policy.stepper(seed)
    envs = make(resolve(trained.config.env), 1, render_mode="rgb_array" if film else None)
    results = Results(policy.checkpoint.name, fps=envs.render_fps)
    try:
        inputs, state = first_inputs(envs.reset(seed), envs), stepper.initial_state(1)
        while len(results.episodes) < episodes:
            if film and not results.episodes:
                results.frames.append(envs.render())
            acted = stepper.act(inputs, state, greedy)
            step = envs.step(acted.actions)
            results.episodes += step.episodes
            inputs, state = next_inputs(step, acted.actions), acted.state
    finally:
        envs.close()
    return results


def check_video(path: Path) -> None:
    """Refuse a file that cannot be written before any episode is played."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise ThespisError(f"--video {path}: give a name that ends in .gif or .mp4")
    if not path.parent.is_dir():
        raise ThespisError(f"--video {path}: there is no directory {path.parent}")
    if path.suffix.lower() == ".mp4" and importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ThespisError('mp4 needs a codec: pip install "thespis[video]", or write a .gif')


def write_video(path: Path, frames: list[Array], fps: int) -> None:
    """Write frames, uint8 `[H, W, 3]`, as .gif or .mp4."""
    if path.suffix.lower() == ".gif":
        from PIL import Image

        # Viewers slow a gif down when frames are shorter than 20 ms, so show fewer of them instead.
        skip = max(1, round(fps / 30))
        images = [Image.fromarray(frame) for frame in frames[::skip]]
        images[0].save(path, save_all=True, append_images=images[1:], duration=round(1000 * skip / fps), loop=0)
    else:
        import imageio.v2 as imageio

        imageio.mimwrite(path, [np.ascontiguousarray(frame) for frame in frames], fps=fps, macro_block_size=2)
