"""When a process that is stopped by a signal is killed."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from thespis.runtime.local import LocalSupervisor


@pytest.mark.parametrize("ending", [False, True])
def test_a_stopped_process_gets_time_to_save_once_the_run_ends(ending: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was stopped for 10 s when the run ends: it is continued then, and not killed in the same moment."""
    sent: list[int] = []
    killed: list[float] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    session = SimpleNamespace(stop_reason=None, log=lambda line: None)
    supervisor: Any = LocalSupervisor.__new__(LocalSupervisor)
    supervisor._session, supervisor._ending_since = session, None
    child: Any = SimpleNamespace(
        name="learner", process=SimpleNamespace(pid=0), stopped=True, stopped_since=None, failure=None
    )
    for now in range(100, 130):
        session.stop_reason = "total_seconds" if ending and now >= 110 else None
        child.kill = lambda now=now: killed.append(now)
        supervisor._check_stopped(child, float(now))
    assert killed == [120 if ending else 110]
    assert set(sent) == ({signal.SIGCONT} if ending else set())
