"""`thespis eval RUN`: plays episodes with a trained policy."""

from __future__ import annotations

from pathlib import Path

from thespis.cli.output_checks import check_file
from thespis.cli.parser import Parser, add_env_flags, add_max_steps, add_policy_flags, count
from thespis.cli.trust_flags import add_trust, open_run


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "thespis eval", description="Play episodes with the policy of a run, and optionally record a video."
    )
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument(
        "--episodes", type=count, default=10, metavar="N", help="Number of episodes to play. (default: 10)"
    )
    add_policy_flags(parser)
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="Record a video of the first episode as .gif or .mp4."
    )
    add_trust(parser)
    add_env_flags(parser)
    add_max_steps(parser)
    args = parser.parse_args(words)

    from thespis.envs.infos import means
    from thespis.training.evaluation import check_video, play, write_video

    if args.video is not None:
        check_video(args.video)
        check_file(args.video, "--video")
    results = play(
        open_run(args.run, args.trust),
        args.episodes,
        checkpoint=args.checkpoint,
        greedy=not args.sample,
        seed=args.seed,
        film=args.video is not None,
        env=args.env,
        wrappers=args.wrapper,
        max_steps=args.max_steps,
    )
    for number, episode in enumerate(results.episodes, 1):
        cut = ", truncated by --max-steps" if number - 1 in results.cut else ""
        print(f"episode {number}: return {episode.reward:g}, length {episode.length}{cut}")
    mean = sum(episode.reward for episode in results.episodes) / len(results.episodes)
    how = "actions sampled from the policy" if args.sample else "greedy"
    print(f"mean return {mean:g} over {len(results.episodes)} episodes, {how} ({results.checkpoint})")
    for name, value in means(results.episodes).items():
        print(f"mean {name} {value:g}")
    if args.video is not None:
        write_video(args.video, results.frames, results.fps)
        print(f"video of episode 1: {args.video}")
    return 0
