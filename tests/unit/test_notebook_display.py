"""The display of a run in a notebook: one output, updated in place."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from thespis.core.context import Report
from thespis.runs.monitor import Monitor, RunIdentity
from thespis.runs.terminal.notebook import in_notebook
from thespis.runs.terminal.screen import Screen
from thespis.runs.terminal.view import View

WHO = RunIdentity("impala", "CartPole-v1", 3, "local")


def a_view(steps: int) -> View:
    monitor = Monitor()
    monitor.add(Report("actor", 0, 1.0, counters={"env_steps": steps}), 1.0)
    return View.of(monitor, WHO, 1000, 1.0)


class Cell:
    """The output of a cell: displays, and their numbers of updates."""

    def __init__(self) -> None:
        self.displays: list[dict[str, str]] = []
        self.updates = 0

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        self.displays.append(data)
        place = len(self.displays) - 1

        def update(data: dict[str, str], raw: bool) -> None:
            self.displays[place], self.updates = data, self.updates + 1

        return SimpleNamespace(update=update)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    """Simulate a kernel: IPython is loaded, and its shell has a kernel."""
    cell, ipython, display = Cell(), ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return cell


def test_everything_goes_to_one_display(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.say("actor 0 was <killed>")
    screen.refresh(a_view(100))
    screen.report(a_view(200))
    screen.refresh(a_view(300))
    screen.close()
    screen.say("it ended")
    (shown,) = cell.displays
    assert cell.updates == 3, "the second view is too soon after the first, so it is shown at the end"
    assert "steps 300/1,000" in shown["text/plain"] and shown["text/plain"].endswith("was <killed>\nit ended")
    assert "300" in shown["text/html"] and "was &lt;killed&gt;\nit ended" in shown["text/html"]
    assert capsys.readouterr() == ("", "")


def test_a_quiet_run_shows_nothing(cell: Cell) -> None:
    screen = Screen(quiet=True)
    screen.say("a line")
    screen.refresh(a_view(100))
    screen.close()
    assert not cell.displays


def test_only_a_kernel_is_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook() and "IPython" not in sys.modules
    for shell in (None, SimpleNamespace()):  # IPython as a library, and on a terminal
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert not in_notebook()
