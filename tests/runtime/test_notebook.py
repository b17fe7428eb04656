"""The example notebooks, executed by a kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from conftest import ROOT, Stage

EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=".")
nbformat.write(notebook, sys.argv[2])
"""
"""Executed in a separate process, which isolates the event loops and the warnings of the kernel's client."""


def execute(stage: Stage, name: str) -> list[list[dict[str, Any]]]:
    """Return the outputs of each code cell."""
    places = {name: str(stage.path / "jupyter") for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    environment = {
        **stage.environment(),
        **places,
        "JUPYTER_RUNTIME_DIR": str(stage.path / "jupyter" / "runtime"),
        "NOTEBOOK_STEPS": "3000",
    }
    words = [sys.executable, "-c", EXECUTE, ROOT / "examples" / name, stage.path / "executed.ipynb"]
    ended = subprocess.run(words, cwd=stage.path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    notebook = json.loads((stage.path / "executed.ipynb").read_text())
    return [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_a_notebook_trains_plots_and_acts(stage: Stage) -> None:
    imports, definition, training, plot, acting = execute(stage, "notebook.ipynb")
    assert not imports and not definition
    assert len(training) == 1, "one display, updated in place"
    shown = training[0]
    assert shown["output_type"] == "display_data" and set(shown["data"]) == {"text/html", "text/plain"}
    text, page = "".join(shown["data"]["text/plain"]), "".join(shown["data"]["text/html"])
    assert "impala with vtrace on __main__::Thermostat: total_steps" in text and "training return" in text
    assert "Thermostat" in page and "learner" in page, "the panel"
    assert any("image/png" in output.get("data", {}) for output in plot)
    (printed,) = acting
    assert "".join(printed["text"]).count(",") >= 9
    (run,) = (stage.path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["on"] == "local" and summary["exit_reason"] == "total_steps"


def test_the_quick_start(stage: Stage) -> None:
    imports, training, plot, evaluation, episode, loaded, simulated = execute(stage, "quickstart.ipynb")
    assert not imports
    assert "impala with vtrace on CartPole-v1: total_steps" in "".join(training[0]["data"]["text/plain"])
    for outputs in (plot, episode):
        assert any("image/png" in output.get("data", {}) for output in outputs)
    assert "±" in "".join(evaluation[0]["text"])
    assert "".join(loaded[0]["data"]["text/plain"]) in ("0", "1")
    assert "".join(simulated[0]["data"]["text/plain"]) == "True"


@pytest.mark.parametrize("name", ["notebook.ipynb", "quickstart.ipynb"])
def test_notebooks_are_stored_without_outputs(name: str) -> None:
    notebook = json.loads((ROOT / "examples" / name).read_text())
    for cell in notebook["cells"]:
        assert cell["cell_type"] != "code" or (cell["outputs"] == [] and cell["execution_count"] is None)
