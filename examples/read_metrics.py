"""Read the metrics of runs with pandas.

    pip install pandas
    thespis train impala --env CartPole-v1 --total-steps 100k --run-dir runs/a
    python examples/read_metrics.py runs/a
    python examples/read_metrics.py runs/*        # any number of runs

docs/runs.md says what is in summary.json; the page of each architecture lists its metrics.
"""

import argparse
import json
from pathlib import Path

import pandas as pd


def read_metrics(run: Path) -> pd.DataFrame:
    """The rows of metrics.jsonl by environment step, one row per step. A metric that a row lacks is NaN."""
    return pd.read_json(run / "metrics.jsonl", lines=True).groupby("step").last()


def read_summaries(runs: list[Path]) -> pd.DataFrame:
    """One row per run, from its summary.json; nested values have dotted names, such as `lag.mean`."""
    summaries = [json.loads((run / "summary.json").read_text()) for run in runs]
    return pd.json_normalize(summaries).set_index(pd.Index([run.name for run in runs], name="run"))


def waiting(metrics: pd.DataFrame) -> pd.Series:
    """Share of the time that each role waited for others, over the second half of a run.

    The bottleneck waits least. A service, such as a queue, makes no calls and has 0%.
    """
    shares = metrics.filter(regex=r"^role/.*/wait_share$")
    return shares.iloc[len(shares) // 2 :].mean().rename(lambda name: name.split("/")[1]).sort_values()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print tables of runs.")
    parser.add_argument("runs", type=Path, nargs="+", help="run directories")
    args = parser.parse_args()
    columns = ["exit_reason", "env_steps", "return_mean", "eval_return_mean", "steps_per_second", "lag.mean"]
    print(read_summaries(args.runs).reindex(columns=columns).to_string(), end="\n\n")

    curves = {run.name: read_metrics(run) for run in args.runs}
    returns = pd.concat({name: rows["rollout/ep_rew_mean"] for name, rows in curves.items()}, axis="columns")
    print("training return, by environment step")
    returns = returns.sort_index().interpolate("index", limit_area="inside")
    print(returns.iloc[:: max(1, len(returns) // 10)].to_string())
    for name, rows in curves.items():
        print(f"\nshare of the time that the roles of {name} waited")
        print(waiting(rows).to_string(float_format="{:.0%}".format))
