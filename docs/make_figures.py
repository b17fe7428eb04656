"""Draws the figures of the documentation, and prints the numbers of its tables.

python docs/make_figures.py [cartpole] [lag] [scale] [memory] [pendulum] [staleness] [panel] [peers]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from thespis import train
from thespis.runs.terminal import screen
from thespis.runs.terminal.panel import render_svg

IMAGES = Path(__file__).parent / "images"
COLOURS = ["#2a78b5", "#e07b39", "#3a9d5d", "#8d5fa8"]
plt.rcParams.update({"figure.figsize": (7, 3.6), "axes.spines.top": False, "axes.spines.right": False, "font.size": 10})

LAGGED: dict[str, Any] = {
    "env": "CartPole-v1",
    "on": "simulation",
    "actors": 1,
    "envs_per_actor": 8,
    "unroll_length": 20,
    "total_steps": 150_000,
    "optimizer": {"learning_rate": 3e-3, "anneal": False},
    "report_every": 0.02,
}
MEMORY: dict[str, Any] = {
    "env": "thespis/Memory-v0",
    "on": "simulation",
    "actors": 1,
    "report_every": 0.05,
}


def run(name: str = "impala", **settings: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train, and return the rows of metrics and the summary."""
    with tempfile.TemporaryDirectory() as directory:
        trained = train(name, run_dir=Path(directory) / "run", quiet=True, **settings)
        rows = [json.loads(line) for line in (trained.path / "metrics.jsonl").read_text().splitlines()]
        return rows, trained.summary


def curve(rows: list[dict[str, Any]], x: str = "step") -> tuple[Any, Any]:
    points = [(row[x], row["rollout/ep_rew_mean"]) for row in rows if "rollout/ep_rew_mean" in row]
    return tuple(np.array(points).T)


def save(figure: Any, name: str) -> None:
    IMAGES.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(IMAGES / f"{name}.png", dpi=130)
    print(f"wrote {IMAGES / name}.png")


def cartpole() -> None:
    """Plot the return over steps and over seconds: default settings, local runtime, ten seeds."""
    figure, (left, right) = plt.subplots(1, 2, sharey=True)
    for seed in range(10):
        rows, summary = run(env="CartPole-v1", seed=seed, stop_at_return=475, report_every=0.1)
        started = summary["startup_seconds"]
        left.plot(*curve(rows), color=COLOURS[0], alpha=0.6, lw=1.2)
        seconds, returns = curve(rows, "time")
        right.plot(seconds - started, returns, color=COLOURS[0], alpha=0.6, lw=1.2)
        print(
            f"seed {seed}: {summary['exit_reason']} after {summary['env_steps']:,} steps, "
            f"start-up {started:.1f} s, then {summary['seconds_to_threshold'] - started:.1f} s, "
            f"{summary['steps_per_second']:,.0f} steps/s, "
            f"lag {summary['lag']['mean']:.1f} (max {summary['lag']['max']:.0f})"
        )
    left.set(xlabel="1000 environment steps", ylabel="return, mean of 100 episodes", ylim=(0, 510))
    left.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}")
    right.set(xlabel="seconds after start-up")
    for axis in (left, right):
        axis.axhline(475, color="grey", lw=0.8, ls="--")
    save(figure, "cartpole")


def lag() -> None:
    """Plot training with weights that are ten updates old, with and without V-trace."""
    figure, axis = plt.subplots()
    for correction, colour, label in ((True, COLOURS[0], "V-trace"), (False, COLOURS[1], "no correction")):
        for seed in range(3):
            rows, summary = run(**LAGGED, seed=seed, forced_lag=10, correction=correction)
            axis.plot(*curve(rows), color=colour, lw=1.4, label=label if seed == 0 else None)
            print(f"{label}, seed {seed}: {summary['return_mean_100']:.1f}, lag {summary['lag']['mean']:.1f}")
    axis.set(xlabel="environment steps", ylabel="return, mean of 100 episodes", ylim=(0, 510))
    axis.legend(frameon=False)
    save(figure, "lag")


def scale() -> None:
    """Plot throughput, lag and learning of more actors on a simulated network of 1 to 5 ms."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        # Queue and weights are on the learner's machine; the actors are across the network.
        file.write("edges:\n  default: {latency: [0.001, 0.005]}\n")
        file.write("  learner.queue.sample: {latency: 1e-4}\n  learner.weights.publish: {latency: 1e-4}\n")
        file.flush()
        figure, (left, right) = plt.subplots(1, 2, width_ratios=(2, 3))
        results = []
        for actors, colour in zip((4, 32, 256), COLOURS, strict=False):
            rows, summary = run(
                env="CartPole-v1",
                on="simulation",
                actors=actors,
                envs_per_actor=4,
                unroll_length=20,
                batch_unrolls=8,
                queue_capacity=8,
                total_steps=500_000,
                cost_model=Path(file.name),
                report_every=0.05,
                eval_every=0.0,
                optimizer={"learning_rate": 2e-3, "anneal": False},
            )
            results.append((actors, summary["steps_per_second"], summary["lag"]["mean"]))
            wait = {name: row for name, row in rows[len(rows) // 2].items() if name.endswith("wait_share")}
            right.plot(*curve(rows), color=colour, label=f"{actors} actors, lag {summary['lag']['mean']:.0f}")
            print(
                f"{actors} actors: {summary['steps_per_second']:,.0f} virtual steps/s, "
                f"lag {summary['lag']['mean']:.1f} (max {summary['lag']['max']:.0f}), "
                f"learner waits {wait['role/learner/wait_share']:.0%}"
            )
    actors, speed, lags = zip(*results, strict=True)
    left.plot(actors, np.array(speed) / 1e3, "o-", color=COLOURS[0])
    left.set(xscale="log", xlabel="actors", ylabel="1000 steps per virtual second", xticks=actors, xticklabels=actors)
    left.minorticks_off()
    left.set_ylim(0)
    twin = left.twinx()
    twin.plot(actors, lags, "s--", color=COLOURS[1])
    twin.set_ylabel("lag, updates", color=COLOURS[1])
    twin.set_ylim(0)
    right.set(xlabel="1000 environment steps", ylabel="return", ylim=(0, 510))
    right.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}")
    right.legend(frameon=False)
    save(figure, "scale")


def memory() -> None:
    """Plot the memory task, where a cue at the first step decides the last reward, with and without an LSTM."""
    figure, axis = plt.subplots()
    for lstm, colour, label in ((32, COLOURS[0], "LSTM"), (0, COLOURS[1], "feed-forward")):
        for seed in range(3):
            rows, summary = run(**MEMORY, seed=seed, network={"lstm": lstm})
            axis.plot(*curve(rows), color=colour, lw=1.2, label=label if seed == 0 else None)
            print(f"{label}, seed {seed}: {summary['return_mean_100']:.2f}, eval {summary['eval_return_mean']:.2f}")
    axis.set(xlabel="environment steps", ylabel="return, mean of 100 episodes")
    axis.legend(frameon=False)
    save(figure, "memory")


def pendulum() -> None:
    """Plot Pendulum, which has continuous actions, with its preset on the local runtime."""
    figure, axis = plt.subplots()
    for seed in range(3):
        rows, summary = run(env="Pendulum-v1", seed=seed)
        axis.plot(*curve(rows), color=COLOURS[0], alpha=0.7, lw=1.4)
        print(
            f"seed {seed}: {summary['return_mean_100']:.0f}, eval {summary['eval_return_mean']:.0f} after "
            f"{summary['env_steps']:,} steps in {summary['wall_seconds']:.0f} s, "
            f"{summary['steps_per_second']:,.0f} steps/s"
        )
    axis.set(xlabel="environment steps", ylabel="return, mean of 100 episodes")
    save(figure, "pendulum")


def staleness() -> None:
    """Plot 16, 64 and 256 simulated asynchronous workers: plain, staleness-aware and bounded."""
    forms: dict[str, dict[str, Any]] = {
        "plain": {},
        "staleness-aware": {"staleness_aware": True},
        "at most 4 behind": {"mode": "stale", "max_staleness": 4},
    }
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(9, 3.2))
    for axis, workers in zip(axes, (16, 64, 256), strict=True):
        for (label, form), colour in zip(forms.items(), COLOURS, strict=False):
            rows, summary = run(
                "parameter-server",
                env="CartPole-v1",
                on="simulation",
                actors=workers,
                envs_per_actor=4,
                total_steps=300_000,
                report_every=0.8 / workers,  # the more workers, the faster virtual time passes
                eval_episodes=0,
                optimizer={"learning_rate": 4e-3, "anneal": False},
                **form,
            )
            axis.plot(*curve(rows), color=colour, label=label)
            lag, dropped = summary["lag"], summary["dropped"].get("stale_gradients", 0)
            print(
                f"{workers} workers, {label}: return {summary['return_mean_100']:.0f}, staleness {lag['mean']:.1f} "
                f"(max {lag['max']:.0f}), {summary['updates']:,} updates, {dropped:,} refused"
            )
        axis.set(title=f"{workers} workers", xlabel="1000 environment steps", ylim=(0, 510))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}")
    axes[0].set_ylabel("return, mean of 100 episodes")
    axes[2].legend(frameon=False, loc="upper left")
    save(figure, "staleness")


def panel() -> None:
    """Save the live panel in the middle of a real run."""
    views: list[Any] = []
    screen.Screen.refresh = lambda self, view: views.append(view)
    run(env="CartPole-v1", total_steps=2_000_000, report_every=0.25, eval_every=2.0)
    evaluated = [view for view in views if view.evaluation is not None]
    svg = render_svg(evaluated[len(evaluated) // 2])
    (IMAGES / "panel.svg").write_text(svg)
    print(f"wrote {IMAGES / 'panel.svg'}")


def measured() -> list[dict[str, str]]:
    """Return the rows of the table in benchmarks.md, by column; the first of two columns with the same name."""
    text = (Path(__file__).parent / "benchmarks.md").read_text()
    lines = text.partition("<!-- measured -->")[2].partition("<!-- /measured -->")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if "|" in line]
    return [dict(zip(["library", *header][::-1], row[::-1], strict=True)) for row in rows]


def number(cell: str) -> float:
    return float(cell.replace(",", ""))


def peers() -> None:
    """Plot the table of benchmarks.md as bars: the best row of each library per column. Text stays text in the SVG."""
    columns = {"CartPole steps/s": max, "seconds to 475": min, "Pong steps/s": max}
    names = {
        "Thespis": "Thespis",
        "Sample": "Sample Factory",
        "RLlib": "RLlib",
        "Stable": "SB3",
        "PPO": "CleanRL's PPO",
    }
    figure, axes = plt.subplots(1, 3, sharey=True, figsize=(10, 2.6))
    for axis, (column, best) in zip(axes, columns.items(), strict=True):
        labels = []
        for start in names:
            cells = [row[column] for row in measured() if row["library"].startswith(start)]
            labels.append(best((cell for cell in cells if cell[0].isdigit()), key=number, default="not reached"))
        widths = [number(label) if label[0].isdigit() else 0.0 for label in labels]
        least = min(filter(None, widths)) / 2
        axis.set(title=column, xscale="log", xlim=(least, max(widths) * 4))
        axis.set_yticks(range(len(names)), names.values())
        axis.barh(range(len(names)), widths, color=[COLOURS[0], *["#b8c4cf"] * (len(names) - 1)])
        for place, (label, width) in enumerate(zip(labels, widths, strict=True)):
            axis.annotate(label, (max(width, least), place), (4, 0), va="center", textcoords="offset points")
        axis.tick_params(axis="x", labelbottom=False, length=0, which="both")
        axis.spines["bottom"].set_visible(False)
    axes[0].invert_yaxis()
    figure.tight_layout()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "thespis"}):
        figure.savefig(IMAGES / "peers.svg", metadata={"Date": None})
    print(f"wrote {IMAGES / 'peers.svg'}")


FIGURES = {
    function.__name__: function for function in (cartpole, lag, scale, memory, pendulum, staleness, panel, peers)
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
