"""A job for a cluster that can be stopped at any time and submitted again: it continues from its newest checkpoint.

    pip install "thespis[ray]"
    python examples/resume_on_ray.py                                      # a Ray of this machine alone
    python examples/resume_on_ray.py --ray-address auto --run-dir /shared/runs/a     # the cluster of this machine
    python examples/resume_on_ray.py --preempt-after 20000                # stops itself once; run it again

On SIGTERM, which Slurm and Kubernetes send, a run saves a checkpoint and `train` returns. A run that is killed loses
the steps since its last checkpoint, so `save_every` bounds the loss.
"""

import argparse
import os
import shutil
import signal
from pathlib import Path

from thespis import Callback, TrainedRun, resume, train


class Preempt(Callback):
    """Sends SIGTERM to this process after some steps, as a scheduler does that needs the machine."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_report(self, row: dict) -> None:
        if row["step"] >= self.steps:
            os.kill(os.getpid(), signal.SIGTERM)
            self.steps = 10**12


def train_or_resume(run_dir: Path, total_steps: int, preempt_after: int | None, **cluster) -> TrainedRun:
    """The same call starts the run and continues it. Actors and cluster may differ from one call to the next."""
    callbacks = [] if preempt_after is None else [Preempt(preempt_after)]
    if list(run_dir.glob("checkpoints/update-*")):
        return resume(run_dir, total_steps=total_steps, callbacks=callbacks, **cluster)
    if (run_dir / "config.yaml").exists():
        shutil.rmtree(run_dir)  # a run that stopped before its first checkpoint
    return train(
        "impala",
        env="CartPole-v1",
        run_dir=run_dir,
        total_steps=total_steps,
        save_every=50_000,
        report_every=0.2,
        callbacks=callbacks,
        **cluster,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train IMPALA on CartPole-v1 on Ray, or continue.")
    parser.add_argument("--run-dir", type=Path, default=Path("runs/on-ray"), help="on a disk that all nodes see")
    parser.add_argument("--ray-address", help="auto or HOST:PORT; by default a Ray of this machine alone")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400_000)
    parser.add_argument("--preempt-after", type=int, help="environment steps after which the job stops itself")
    args = parser.parse_args()
    run = train_or_resume(
        args.run_dir, args.steps, args.preempt_after, on="ray", ray_address=args.ray_address, actors=args.actors
    )
    print(f"{run.summary['exit_reason']} after {run.summary['env_steps']:,} of {args.steps:,} steps")
