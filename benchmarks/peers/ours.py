"""Thespis: any architecture, with its own settings."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from lines import Lines, arguments

from thespis.runtime.session import Session
from thespis.training.launch import launch
from thespis.training.registry import defaults


class Watch(threading.Thread):
    """Prints lines from the monitor of a run, and ends the run at its limit."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(daemon=True)
        self._lines = lines
        self._session: Session | None = None

    def began(self, session: Session) -> None:
        self._session = session
        self.start()

    def run(self) -> None:
        assert self._session is not None
        monitor = self._session.monitor
        while monitor.first_step is None and self._session.stop_reason is None:
            time.sleep(0.005)
        self._lines.start()
        while self._session.stop_reason is None:
            time.sleep(0.02)
            mean = monitor.return_mean_100
            if self._lines.report(monitor.env_steps, [] if mean is None else [mean] * 100):
                self._session.end("enough")


def main() -> None:
    args, settings = arguments()
    watch = Watch(Lines(args.until, args.seconds))
    if args.until is None:
        # Presets end a run when the task is learned, before the time limit.
        settings["total_steps"] = 1_000_000_000
    with tempfile.TemporaryDirectory() as directory:
        more = {"env": args.env, "seed": args.seed, "eval_episodes": 0, "run_dir": Path(directory) / "run", **settings}
        launch(args.algorithm, defaults(args.algorithm, None, more), quiet=True, began=watch.began)
    watch.join()


if __name__ == "__main__":
    main()
