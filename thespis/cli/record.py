"""`thespis record RUN`: write episodes of a trained policy as demonstrations."""

from __future__ import annotations

from pathlib import Path

from thespis.cli.parser import Parser
from thespis.errors import ThespisError


def run(words: list[str]) -> int:
    parser = Parser("thespis record", description="Write episodes of a run's policy as demonstrations.")
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("--episodes", type=int, default=100, help="how many to record (default: 100)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new directory for them")
    parser.add_argument(
        "--checkpoint",
        choices=["newest", "best"],
        default="newest",
        help="where to take the policy from (default: newest)",
    )
    parser.add_argument("--sample", action="store_true", help="draw actions instead of taking the likeliest")
    parser.add_argument("--seed", type=int, default=0, help="of the environment and of drawn actions (default: 0)")
    args = parser.parse_args(words)
    if args.episodes < 1:
        raise ThespisError(f"--episodes is {args.episodes}; give at least 1")
    if args.out.exists():
        raise ThespisError(f"--out {args.out} is there already; give a directory that is not")

    from thespis.config import resolve
    from thespis.envs.make import make
    from thespis.experience.demonstrations import save
    from thespis.experience.recording import record, trained
    from thespis.trained import Trained

    found = Trained(args.run)
    policy = found.load_policy(args.checkpoint)
    envs = make(resolve(found.config.env), 1)
    try:
        episodes = record(envs, trained(policy, not args.sample, args.seed), args.episodes, args.seed)
    finally:
        envs.close()
    returns = [float(episode.rewards.sum()) for episode in episodes]
    about = {"env": found.config.env_name, "run": str(args.run), "checkpoint": policy.checkpoint.name}
    save(args.out, episodes, {**about, "seed": args.seed, "greedy": not args.sample, "returns": returns})
    steps, mean = sum(map(len, episodes)), sum(returns) / len(returns)
    print(f"{len(episodes)} episodes, {steps} steps, mean return {mean:g} ({policy.checkpoint.name}): {args.out}")
    return 0
