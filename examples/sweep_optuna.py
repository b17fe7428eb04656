"""Tune settings with Optuna on the simulation: a trial is one process, and equal settings give equal results.

    pip install optuna
    python examples/sweep_optuna.py --trials 20
    python examples/sweep_optuna.py --trials 20 --storage sqlite:///sweep.db   # in several terminals at once

Each trial is an ordinary run, so `thespis plot sweep/*` draws the curves of all trials.
"""

import argparse
from pathlib import Path

import optuna

from thespis import Callback, train


class ReportToOptuna(Callback):
    """Sends the training return of each row to a trial, and stops the run when Optuna prunes the trial."""

    def __init__(self, trial: optuna.Trial) -> None:
        self.trial, self.rows = trial, 0

    def on_report(self, row: dict) -> str | None:
        if "rollout/ep_rew_mean" not in row:
            return None  # no episode has ended yet
        self.rows += 1
        self.trial.report(row["rollout/ep_rew_mean"], self.rows)
        return "stop" if self.trial.should_prune() else None


def objective(trial: optuna.Trial, steps: int, out: Path) -> float:
    """Mean return of the last training episodes after `steps` environment steps."""
    run = train(
        "impala",
        env="CartPole-v1",
        on="simulation",
        total_steps=steps,
        actors=2,
        envs_per_actor=16,
        unroll_length=trial.suggest_categorical("unroll_length", [8, 16, 32]),
        entropy_cost=trial.suggest_float("entropy_cost", 1e-4, 3e-2, log=True),
        optimizer={"learning_rate": trial.suggest_float("learning_rate", 3e-4, 1e-2, log=True)},
        report_every=0.02,  # seconds of virtual time
        eval_episodes=0,
        run_dir=out / f"trial-{trial.number:03d}",
        callbacks=[ReportToOptuna(trial)],
        quiet=True,
    )
    if run.summary["exit_reason"] == "callback":
        raise optuna.TrialPruned
    return run.summary["return_mean"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tune IMPALA on CartPole-v1 with Optuna.")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps of a trial")
    parser.add_argument("--out", type=Path, default=Path("sweep"), help="directory for the runs")
    parser.add_argument("--storage", help="database that several processes share, e.g. sqlite:///sweep.db")
    args = parser.parse_args()
    study = optuna.create_study(
        study_name="impala-cartpole",
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=3),
        storage=args.storage,
        load_if_exists=True,
    )
    study.optimize(lambda trial: objective(trial, args.steps, args.out), n_trials=args.trials)
    print(f"best return {study.best_value:.1f} with {study.best_params}")
