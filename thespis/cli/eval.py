"""`thespis eval RUN`: play episodes with a trained policy."""

from __future__ import annotations

from pathlib import Path

from thespis.cli.parser import Parser


def run(words: list[str]) -> int:
    parser = Parser("thespis eval", description="Play episodes with the policy of a run.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--episodes", type=int, default=10, help="how many to play (default: 10)")
    parser.add_argument(
        "--checkpoint",
        choices=["newest", "best"],
        default="newest",
        help="where to take the policy from (default: newest)",
    )
    parser.add_argument("--sample", action="store_true", help="draw actions instead of taking the likeliest")
    parser.add_argument("--seed", type=int, default=0, help="of the environment and of drawn actions (default: 0)")
    parser.add_argument("--video", type=Path, metavar="FILE", help="film the first episode as .gif or .mp4")
    args = parser.parse_args(words)

    from thespis.evaluation import check_video, play, write_video
    from thespis.trained import Trained

    if args.video is not None:
        check_video(args.video)
    results = play(
        Trained(args.run),
        args.episodes,
        checkpoint=args.checkpoint,
        greedy=not args.sample,
        seed=args.seed,
        film=args.video is not None,
    )
    for number, episode in enumerate(results.episodes, 1):
        print(f"episode {number}: return {episode.reward:g}, length {episode.length}")
    mean = sum(episode.reward for episode in results.episodes) / len(results.episodes)
    print(f"mean return {mean:g} over {len(results.episodes)} episodes ({results.checkpoint})")
    if args.video is not None:
        write_video(args.video, results.frames, results.fps)
        print(f"video of episode 1: {args.video}")
    return 0
