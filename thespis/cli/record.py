"""`thespis record RUN`: write episodes of a trained policy as demonstrations."""

from __future__ import annotations

from pathlib import Path

from thespis.cli.parser import Parser, add_env_flags, add_max_steps, add_policy_flags, count
from thespis.cli.trusting import add_trust, open_run
from thespis.cli.writable import check_directory
from thespis.core.errors import ThespisError


def run(words: list[str]) -> int:
    parser = Parser("thespis record", description="Write episodes of a run's policy as demonstrations.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--episodes", type=count, default=100, help="how many to record (default: 100)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new directory for them")
    add_policy_flags(parser)
    add_trust(parser)
    add_env_flags(parser)
    add_max_steps(parser)
    args = parser.parse_args(words)
    if args.episodes < 1:
        raise ThespisError(f"--episodes is {args.episodes}; give at least 1")
    if args.out.exists():
        raise ThespisError(f"--out {args.out} is there already; give a directory that is not")
    check_directory(args.out, "--out")

    from thespis.envs.make import make
    from thespis.experience.demonstrations import save
    from thespis.experience.recording import record, trained

    found = open_run(args.run, args.trust)
    cfg = found.env_config(args.env, args.wrapper)
    policy = found.load_policy(args.checkpoint)
    longest = found.config.eval_max_steps if args.max_steps is None else args.max_steps
    envs = make(cfg, 1)
    try:
        episodes = record(envs, trained(policy.stepper(args.seed), not args.sample), args.episodes, args.seed, longest)
    finally:
        envs.close()
    returns = [float(episode.rewards.sum()) for episode in episodes]
    about = {"env": cfg.name, "run": str(args.run), "checkpoint": policy.checkpoint.name}
    save(args.out, episodes, {**about, "seed": args.seed, "greedy": not args.sample, "returns": returns})
    cut = sum(len(episode) >= longest and not episode.terminated for episode in episodes)
    if cut:
        print(f"{cut} episodes did not end within {longest:,} steps (--max-steps) and were cut there")
    steps, mean = sum(map(len, episodes)), sum(returns) / len(returns)
    print(f"{len(episodes)} episodes, {steps} steps, mean return {mean:g} ({policy.checkpoint.name}): {args.out}")
    return 0
