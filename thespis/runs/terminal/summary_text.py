"""The summary of a finished run as text. Every figure names its sample and time span."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from thespis.runs.terminal.formatting import algorithm_title, format_duration, format_number

_FAR = 0.2
"""Relative difference between training and evaluation return above which the text explains it."""


def final_lines(summary: dict[str, Any], run: Path) -> list[str]:
    """The text after the run: exit reason, results, and run directory."""
    steps = f"{summary['env_steps']:,} steps, {summary['updates']:,} updates, {summary['episodes']:,} episodes"
    lines = [
        f"{algorithm_title(summary['architecture'], summary['algorithm'])} on {summary['env']}: {_reason(summary)}",
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
    if events := summary.get("learner_events"):  # older runs have none
        lines.append(
            "  learners: " + ", ".join(f"{count} {event.replace('_', ' ')}" for event, count in events.items())
        )
    if sizes := summary.get("gradients"):  # older runs have none
        sent = f"{sizes.get('wire_bytes', 0):,} of {sizes.get('raw_bytes', 0):,} bytes sent"
        lines.append(f"  gradients: {sent}, {sizes.get('lost_memories', 0)} error memories lost")
    if sizes := summary.get("weights"):  # older runs have none
        sent = f"{sizes.get('wire_bytes', 0):,} of {sizes.get('raw_bytes', 0):,} bytes pulled by actors"
        whole = (
            f", {sizes['anchors']} of {sizes['anchors'] + sizes.get('deltas', 0)} whole" if "anchors" in sizes else ""
        )
        lines.append(f"  weights: {sent}{whole}")
    return [*lines, f"  {run}"]


def _reason(summary: dict[str, Any]) -> str:
    """The exit reason, with the threshold if the return decided it."""
    reason: str = summary["exit_reason"]
    if summary["seconds_to_threshold"] is None or summary["stop_at_return"] is None:
        return reason
    at = f"after {summary['steps_to_threshold']:,} steps and {_time(summary, summary['seconds_to_threshold'])}"
    return f"{reason}, return {format_number(summary['stop_at_return'])} {at}"


def spent(summary: dict[str, Any]) -> str:
    """The duration of the run, and its speed with the time span of that speed."""
    taken = f"in {_time(summary, summary['wall_seconds'])}"
    if summary["on"] == "simulation" and "real_seconds" in summary:
        since = " since it was resumed" if summary.get("resumed_at_steps") is not None else ""
        taken += f" ({format_duration(summary['real_seconds'])} real{since})"
    if summary["steps_per_second"] is None:
        return taken
    second = "virtual s" if summary["on"] == "simulation" else "s"
    learning = summary.get("learning_seconds")  # older runs have none
    base = "from" if learning is None else f"in the {_time(summary, learning)} from"
    return f"{taken}; {format_number(summary['steps_per_second'])} steps/{second} {base} the first update to the last"


def _time(summary: dict[str, Any], seconds: float) -> str:
    return f"{format_duration(seconds)} virtual" if summary["on"] == "simulation" else format_duration(seconds)


def training_return(summary: dict[str, Any]) -> str:
    """The mean return of the last training episodes, and their number."""
    mean = summary.get("return_mean", summary["return_mean_100"])  # older runs have only the latter
    episodes = summary.get("return_episodes", 100)
    if mean is None:
        return "training return – (no episode has ended)"
    return f"training return {format_number(mean)} ({_mean_of(episodes)})"


def _mean_of(episodes: int) -> str:
    return "of one episode" if episodes == 1 else f"mean of the last {episodes} episodes"


def _greedy_return(summary: dict[str, Any]) -> str:
    episodes, at = summary["eval_episodes"], summary["eval_env_steps"]
    when = "" if at is None or at == summary["env_steps"] else f" at {at:,} steps"
    return f"greedy return {format_number(summary['eval_return_mean'])} (evaluation of {episodes} episodes{when})"


def _far_apart(training: float | None, greedy: float) -> bool:
    return training is not None and abs(training - greedy) > _FAR * max(abs(training), abs(greedy))
