"""`thespis record RUN`: saves episodes of a trained policy as demonstrations."""

from __future__ import annotations

from pathlib import Path

from thespis.cli.output_checks import check_directory
from thespis.cli.parser import Parser, add_env_flags, add_max_steps, add_policy_flags, count
from thespis.cli.trust_flags import add_trust, open_run
from thespis.core.errors import ThespisError


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("thespis record", description="Save episodes of a run's policy as demonstrations.")
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument(
        "--episodes", type=count, default=100, metavar="N", help="Number of episodes to record. (default: 100)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="Output directory; it must not exist.")
    add_policy_flags(parser)
    add_trust(parser)
    add_env_flags(parser)
    add_max_steps(parser)
    args = parser.parse_args(words)
    if args.episodes < 1:
        raise ThespisError(f"--episodes is {args.episodes}; give at least 1")
    if args.out.exists():
        raise ThespisError(f"--out {args.out} already exists; give another directory")
    check_directory(args.out, "--out")

    from thespis.envs.make import make_envs
    from thespis.experience.demonstrations import save_demonstrations
    from thespis.experience.recording import record, trained_policy

    found = open_run(args.run, args.trust)
    cfg = found.env_config(args.env, args.wrapper)
    policy = found.load_policy(args.checkpoint)
    longest = found.config.eval_max_steps if args.max_steps is None else args.max_steps
    envs = make_envs(cfg, 1)
    try:
        episodes = record(
            envs, trained_policy(policy.policy_runner(args.seed), not args.sample), args.episodes, args.seed, longest
        )
    finally:
        envs.close()
    returns = [float(episode.rewards.sum()) for episode in episodes]
    about = {"env": cfg.name, "run": str(args.run), "checkpoint": policy.checkpoint.name}
    save_demonstrations(args.out, episodes, {**about, "seed": args.seed, "greedy": not args.sample, "returns": returns})
    cut = sum(len(episode) >= longest and not episode.terminated for episode in episodes)
    if cut:
        print(f"{cut} episodes did not end within {longest:,} steps and were truncated (--max-steps)")
    steps, mean = sum(map(len, episodes)), sum(returns) / len(returns)
    print(f"{len(episodes)} episodes, {steps} steps, mean return {mean:g} ({policy.checkpoint.name}): {args.out}")
    return 0
