"""Comparing architectures: the report, and that finished runs are never lost or mixed up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from thespis.cli.main import main
from thespis.report import plots

pytestmark = pytest.mark.timeout(180)
HERE = Path(__file__).parent
SMALL = ["--on", "simulation", "--actors", "1", "--envs-per-actor", "2", "--eval-episodes", "1", "--hidden", "16"]
BUDGET = ["--seconds", "0.1", "--total-steps", "1000"]
PICTURES = {"return-steps", "return-seconds", "speed", "lag", "roles", "traffic"}
BROKEN = """
from thespis.architectures import impala
Config = impala.Config
class Broken:
    def __init__(self, ctx):
        raise RuntimeError("a wheel came off")
def program(cfg):
    p = impala.program(cfg)
    p.at().add("broken", Broken)
    return p
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison of two architectures with two seeds each."""
    out = tmp_path_factory.mktemp("compare") / "out"
    assert main(["compare", "impala", "a2c", *SMALL, *BUDGET, "--seeds", "2", "--out", str(out)]) == 0
    return out


def results(out: Path) -> dict[str, Any]:
    result = json.loads((out / "results.json").read_text())
    return {entry["name"]: entry for entry in result["entries"]}


def summaries(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in (out / "runs").glob("*/summary.json")}


def test_every_file_of_a_report_is_there(done: Path) -> None:
    names = {path.name for path in done.iterdir()}
    assert names == {"report.html", "report.md", "results.json", "runs", *(f"{name}.png" for name in PICTURES)}
    for name in PICTURES:
        assert (done / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    result = (done / "report.md").read_text()
    assert all(f"]({name}.png)" in result for name in PICTURES) and "### impala" in result and "### a2c" in result


def test_results_are_those_of_the_runs(done: Path) -> None:
    result = json.loads((done / "results.json").read_text())
    assert (result["env"], result["on"], result["seeds"], result["threshold"]) == (
        "CartPole-v1",
        "simulation",
        2,
        475.0,
    )
    for name, entry in results(done).items():
        runs = [json.loads((done / "runs" / f"{name}-s{seed}" / "summary.json").read_text()) for seed in (0, 1)]
        assert entry["greedy_returns"]["values"] == [run["eval_return_mean"] for run in runs]
        assert entry["greedy_returns"]["middle"] == pytest.approx(sum(entry["greedy_returns"]["values"]) / 2)
        assert {run["exit_reason"] for run in entry["runs"]} <= {"total_steps", "total_seconds"}
        assert entry["network"] == "16 tanh" and entry["failed"] == []
        assert sum(entry["lag"]["counts"].values()) == sum(sum(run["lag_counts"].values()) for run in runs)
        for edge, traffic in entry["edges"].items():
            carried = sum(run["edges"][edge]["bytes"] for run in runs) / sum(run["env_steps"] for run in runs)
            assert traffic["bytes_per_step"] == pytest.approx(carried)
        assert entry["seconds_to_threshold"]["values"] == [] and "did not reach 475" in entry["limit"]
        assert len(entry["curves"]["steps"]["x"]) == len(entry["curves"]["steps"]["low"]) == 200
    assert results(done)["impala"]["edges"]["actor.queue.insert"]["kind"] == "experience"


class Page(HTMLParser):
    """Counts open tags, and collects words and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [value or "" for name, value in attrs if name.split(":")[-1] in ("href", "src", "srcset")]
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def test_the_page_is_whole_and_needs_nothing_else(done: Path) -> None:
    text = (done / "report.html").read_text()
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == [] and page.seen.count("svg") == len(PICTURES)
    assert "http:" not in text and "https:" not in text and "@import" not in text
    assert all(address.startswith("#") for address in page.addresses), "the report would load something"
    assert not {"link", "script", "img", "iframe"} & set(page.seen)
    assert {"impala", "a2c", "CartPole-v1"} <= set(page.words)
    assert all(text.count(f'id="{name}"') == 1 for name in _ids(text)), "pictures share names"


def _ids(text: str) -> set[str]:
    return set(re.findall(r'\bid="([^"]+)"', text))


def test_a_second_call_runs_nothing_that_is_there(done: Path, capsys: Any) -> None:
    before = summaries(done)
    words = ["compare", "impala", "a2c", *SMALL, *BUDGET, "--seeds", "2", "--out", str(done)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("already finished") == 4 and "running for" not in out
    assert summaries(done) == before


def test_other_settings_are_refused_instead_of_mixed(done: Path, capfd: Any) -> None:
    before = summaries(done)
    words = ["compare", "impala", *SMALL, *BUDGET, "--seeds", "2", "--out", str(done)]
    assert main([*words, "--envs-per-actor", "4"]) == 2
    assert "was run with envs_per_actor 2, not 4; give another --out" in capfd.readouterr().err
    assert summaries(done) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_the_middle_of_a_run_it_goes_on_with_that_run(
    number: int, stage: Any, done: Path, monkeypatch: Any, capsys: Any
) -> None:
    out, gate = stage.path / "out", stage.path / "gate"
    shutil.copytree(done, out)
    monkeypatch.setenv("THESPIS_TEST_GATE", str(gate))
    words = ["compare", "impala", str(HERE / "gated.py"), *SMALL, *BUDGET, "--seeds", "1", "--out", str(out)]
    before = (out / "runs" / "impala-s0" / "summary.json").read_bytes()
    process = stage.start(*words)
    until((out / "runs" / "gated-s0" / "topology.json").exists)
    os.kill(process.pid, number)
    if number == signal.SIGINT:
        gate.touch()
        assert "the same command continues" in process.communicate(timeout=60)[0] and process.returncode == 130
        assert results(out)["gated"]["runs"] == [], "an unfinished run is not compared"
    else:
        process.wait()
        (out / "runs" / "gated-s0" / "metrics.jsonl").write_text('{"step": 1, "ti')
        gate.touch()
    assert main(words) == 0
    result = capsys.readouterr().out
    assert "impala, seed 0: already finished" in result and "seed 0: running for" in result
    assert (out / "runs" / "impala-s0" / "summary.json").read_bytes() == before
    assert [run["seed"] for run in results(out)["gated"]["runs"]] == [0]


def test_a_failed_run_is_shown_and_the_others_stay(stage: Any, done: Path, capfd: Any) -> None:
    out = stage.path / "out"
    shutil.copytree(done, out)
    (stage.path / "broken.py").write_text(BROKEN)
    broken = str(stage.path / "broken.py")
    assert main(["compare", broken, "a2c", *SMALL, *BUDGET, "--seeds", "2", "--out", str(out)]) == 1
    result = results(out)
    assert [each["seed"] for each in result["broken"]["failed"]] == [0, 1]
    assert "a wheel came off" in result["broken"]["failed"][0]["error"] and result["broken"]["runs"] == []
    assert len(result["a2c"]["runs"]) == 2
    for file in ("report.html", "report.md"):
        assert "a wheel came off" in (out / file).read_text()


def test_what_cannot_learn_the_task_is_said_before_anything_starts(stage: Any, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(stage.path)
    before = list(stage.path.rglob("*"))
    assert (
        main(["compare", "impala", "dqn", "apex", "--env", "Pendulum-v1", "--on", "simulation", "--seconds", "1"]) == 2
    )
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "no run was started" in err
    assert "dqn: " in err and "apex: " in err and "impala: " not in err
    assert list(stage.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("compare impala", "--seconds S, --total-steps N, or both"),
        ("compare impala impala --seconds 1", "impala is named twice"),
        ("compare impala --seconds 1 --seeds 0", "--seeds is 0; give at least 1"),
        ("compare impalla --seconds 1", "unknown architecture 'impalla'"),
        ("compare impala --seconds -1", "--total-seconds is -1.0"),
        ("plot nowhere", "nowhere holds no run"),
        ("plot nowhere --out a.txt", "give a name that ends in .png"),
        ("plot nowhere --smooth 0", "--smooth is 0; give at least 1"),
    ],
)
def test_a_mistake_is_one_line(words: str, result: str, stage: Any, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(stage.path)
    before = list(stage.path.rglob("*"))
    assert main(words.split()) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and result in err
    assert list(stage.path.rglob("*")) == before


def test_without_matplotlib_it_is_said_what_to_install(stage: Any, monkeypatch: Any, capfd: Any) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else real(name))
    monkeypatch.chdir(stage.path)
    assert main(["compare", "impala", "--seconds", "1"]) == 2
    assert "pip install 'thespis[plots]'" in capfd.readouterr().err


def test_strange_files_are_not_removed(stage: Any, done: Path, capfd: Any) -> None:
    out = stage.path / "out"
    (out / "runs" / "impala-s0").mkdir(parents=True)
    (out / "runs" / "impala-s0" / "thesis.txt").write_text("precious")
    assert main(["compare", "impala", *SMALL, *BUDGET, "--seeds", "1", "--out", str(out)]) == 2
    assert "it holds thesis.txt" in capfd.readouterr().err
    assert (out / "runs" / "impala-s0" / "thesis.txt").read_text() == "precious"


def test_plot_makes_one_curve_of_runs_that_differ_in_their_seed(
    done: Path, stage: Any, capsys: Any, monkeypatch: Any
) -> None:
    drawn: list[Any] = []
    real = plots.plot_bands
    monkeypatch.setattr(plots, "plot_bands", lambda curves, *rest: (drawn.append(curves), real(curves, *rest))[1])
    runs = [str(path) for path in sorted((done / "runs").glob("*"))]
    picture = stage.path / "curves.png"
    assert main(["plot", *runs, "--x", "seconds", "--smooth", "3", "--out", str(picture)]) == 0
    assert set(drawn[0]) == {"impala", "a2c"}
    assert picture.read_bytes().startswith(b"\x89PNG") and "impala (2)" in capsys.readouterr().out
    assert main(["plot", *runs, "--apart", "--out", str(stage.path / "curves.svg")]) == 0
    assert set(drawn[1]) == {"impala-s0", "impala-s1", "a2c-s0", "a2c-s1"}
    assert main(["plot", *runs, "--metric", "no/such"]) == 2
    assert "has no no/such; it has " in capsys.readouterr().err
