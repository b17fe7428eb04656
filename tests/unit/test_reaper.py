"""The reaper outlives the descendants of its owner, and removes the owner's directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import until

from thespis.core.system.reaper import PROCESS_MARK, RUN_MARK, kill_marked, marked

OWNER = """
import sys
from pathlib import Path
from thespis.core.system.reaper import reaped
with reaped("THESPIS_SOCKET", "name", Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_killing_the_descendants_of_a_process_spares_its_reaper(tmp_path: Path) -> None:
    directory = tmp_path / "socket"
    directory.mkdir()
    marks = {RUN_MARK: "run-of-this-test", PROCESS_MARK: "process-of-this-test"}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(directory)],
        env={**os.environ, **marks},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None and owner.stdout is not None and owner.stdout.readline() == "ready\n"
    for name, value in marks.items():
        assert marked(f"{name}={value}") == [owner.pid], "the reaper carries no mark"
    kill_marked(f"{PROCESS_MARK}={marks[PROCESS_MARK]}")
    owner.wait()
    owner.stdin.close()
    owner.stdout.close()
    until(lambda: not directory.exists())
