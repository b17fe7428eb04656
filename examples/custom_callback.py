"""Two callbacks: stop the run when its return no longer improves, and write some metrics to a CSV file.

    thespis train impala --env CartPole-v1 --callback examples/custom_callback.py::StopOnPlateau
    python examples/custom_callback.py

Callbacks run in the driver, beside the processes that train: a slow callback does not slow down training.
"""

import argparse
import csv
from pathlib import Path

from thespis import Callback, TrainedRun, train


class StopOnPlateau(Callback):
    """Stops the run once the training return has not risen by `least` for `patience` environment steps."""

    def __init__(self, patience: int = 200_000, least: float = 1.0) -> None:
        self.patience, self.least = patience, least
        self.best, self.best_step = float("-inf"), 0

    def on_report(self, row: dict) -> str | None:
        value = row.get("rollout/ep_rew_mean", float("-inf"))
        if value >= self.best + self.least:
            self.best, self.best_step = value, row["step"]
        return "stop" if row["step"] - self.best_step >= self.patience else None


class CsvWriter(Callback):
    """Writes `columns` of each row to curve.csv in the run directory. A metric that a row lacks is an empty cell."""

    def __init__(self, columns: tuple[str, ...] = ("step", "time", "rollout/ep_rew_mean", "train/loss")) -> None:
        self.columns = columns

    def on_start(self, run: TrainedRun) -> None:
        self.file = open(run.path / "curve.csv", "w", newline="")  # noqa: SIM115 (on_end closes it)
        self.writer = csv.DictWriter(self.file, self.columns, extrasaction="ignore")
        self.writer.writeheader()

    def on_report(self, row: dict) -> None:
        self.writer.writerow(row)
        self.file.flush()  # so that others can read the file during the run

    def on_end(self, summary: dict) -> None:
        self.file.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train IMPALA on CartPole-v1 until its return no longer improves.")
    parser.add_argument("--patience", type=int, default=200_000, help="environment steps without improvement")
    parser.add_argument("--run-dir", type=Path, default=None)
    args = parser.parse_args()
    run = train(
        "impala",
        env="CartPole-v1",
        total_steps=5_000_000,
        report_every=0.2,
        run_dir=args.run_dir,
        callbacks=[StopOnPlateau(args.patience), CsvWriter()],
    )
    print(f"{run.summary['exit_reason']} after {run.summary['env_steps']:,} steps; see {run.path / 'curve.csv'}")
