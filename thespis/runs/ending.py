"""A finished run in words, from its summary. Every figure says what it is of and over which time it was taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thespis.runs.figures import duration, number, trained

_FAR = 0.2
"""Share of the larger one by which the returns of training and evaluation may differ without a word about it."""


def final_lines(summary: dict[str, Any], run: Path) -> list[str]:
    """What stands on the screen after the run: how it ended, what it reached, where it is."""
    steps = f"{summary['env_steps']:,} steps, {summary['updates']:,} updates, {summary['episodes']:,} episodes"
    lines = [
        f"{trained(summary['architecture'], summary['algorithm'])} on {summary['env']}: {_reason(summary)}",
        f"  {steps} {spent(summary)}",
        f"  {training_return(summary)}",
    ]
    if summary["eval_return_mean"] is not None:
        lines[-1] += f"; {_greedy_return(summary)}"
        if _far_apart(summary["return_mean"], summary["eval_return_mean"]):
            lines.append(
                f"  the two differ because training explores ({summary['exploration']}) and its mean reaches back to "
                "older weights; the evaluation acts greedily with the newest"
            )
    if summary["restarts"] or summary["dropped"]:
        lines.append(f"  restarts {summary['restarts']}, dropped {sum(summary['dropped'].values())}")
    return [*lines, f"  {run}"]


def _reason(summary: dict[str, Any]) -> str:
    """The exit reason, and what decided it if that was the return."""
    reason: str = summary["exit_reason"]
    if summary["seconds_to_threshold"] is None or summary["stop_at_return"] is None:
        return reason
    at = f"after {summary['steps_to_threshold']:,} steps and {_time(summary, summary['seconds_to_threshold'])}"
    return f"{reason}, return {number(summary['stop_at_return'])} {at}"


def spent(summary: dict[str, Any]) -> str:
    """How long the run took, and its speed with the time that it is taken over."""
    taken = f"in {_time(summary, summary['wall_seconds'])}"
    if summary["on"] == "simulation" and "real_seconds" in summary:
        since = " since it was resumed" if summary.get("resumed_at_steps") is not None else ""
        taken += f" ({duration(summary['real_seconds'])} real{since})"
    if summary["steps_per_second"] is None:
        return taken
    second = "virtual s" if summary["on"] == "simulation" else "s"
    learning = summary.get("learning_seconds")  # older runs do not say
    base = "from" if learning is None else f"in the {_time(summary, learning)} from"
    return f"{taken}; {number(summary['steps_per_second'])} steps/{second} {base} the first update to the last"


def _time(summary: dict[str, Any], seconds: float) -> str:
    return f"{duration(seconds)} virtual" if summary["on"] == "simulation" else duration(seconds)


def training_return(summary: dict[str, Any]) -> str:
    """The mean return of the last training episodes, and of how many."""
    mean = summary.get("return_mean", summary["return_mean_100"])  # older runs only say the latter
    episodes = summary.get("return_episodes", 100)
    if mean is None:
        return "training return – (no episode has ended)"
    return f"training return {number(mean)} ({_mean_of(episodes)})"


def _mean_of(episodes: int) -> str:
    return "of one episode" if episodes == 1 else f"mean of the last {episodes} episodes"


def _greedy_return(summary: dict[str, Any]) -> str:
    episodes, at = summary["eval_episodes"], summary["eval_env_steps"]
    when = "" if at is None or at == summary["env_steps"] else f" at {at:,} steps"
    return f"greedy return {number(summary['eval_return_mean'])} (evaluation of {episodes} episodes{when})"


def _far_apart(training: float | None, greedy: float) -> bool:
    return training is not None and abs(training - greedy) > _FAR * max(abs(training), abs(greedy))
