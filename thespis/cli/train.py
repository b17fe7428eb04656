"""`thespis train ARCH`: every field of the architecture's config is a flag."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.errors import ThespisError
from thespis.launch import architectures, defaults, launch, load_config

if TYPE_CHECKING:
    from thespis.config import Experiment

_ABOUT_FILES = "Flags override --config FILE (a config.yaml of an earlier run will do)."


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: thespis train ARCH [--env ID] [--config FILE] [settings]\n\nARCH: {', '.join(architectures())}")
        print("\nthespis train ARCH --help lists every setting of an architecture.")
        return 0
    name, *flags = words
    if name.startswith("-"):
        raise ThespisError("name the architecture first: thespis train impala --env CartPole-v1")
    return finish(name, settings(name, flags))


def finish(name: str, cfg: Experiment, resume: Path | None = None) -> int:
    """Perform the run and give its exit code."""
    from thespis.trained import RunFailed

    try:
        trained = launch(name, cfg, resume=resume)
    except RunFailed as failure:
        print(f"thespis: {failure}\n\nthe run is in {failure.path}", file=sys.stderr)
        return 1
    return 130 if trained.summary["exit_reason"] == "interrupted" else 0


def settings(name: str, flags: list[str]) -> Experiment:
    """Flags over --config FILE over the preset for the environment over the defaults."""
    import tyro

    flags, file = _take(flags, "--config")
    data: dict[str, Any] = {}
    if file is not None:
        saved, data = load_config(Path(file))
        if saved != name:
            raise ThespisError(
                f"{file} is a config of {saved}, not of {name}; run `thespis train {saved} --config {file}`"
            )
        # Where that run wrote is not a setting of this one.
        data.pop("run_dir", None)
    _, env = _take(flags, "--env")
    # Both change what the other defaults are.
    _, algorithm = _take(flags, "--algorithm")
    _, seconds = _take(flags, "--total-seconds")
    if algorithm is not None:
        data["algorithm"] = algorithm
    if seconds is not None and _take(flags, "--total-steps")[1] is None:
        data["total_seconds"] = seconds
    default = defaults(name, env, data)
    flags = _gathered(flags, type(default))
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            cfg: Experiment = tyro.cli(
                type(default),
                args=_gathered(flags, type(default)),
                default=default,
                prog=f"thespis train {name}",
                description=f"{type(default).__doc__}\n\n{_ABOUT_FILES}",
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ThespisError(f"{_unboxed(complaint.getvalue())}; see thespis train {name} --help") from None
    return cfg


def _gathered(flags: list[str], config: type[Any]) -> list[str]:
    """Flags that take several words may be given several times; tyro would keep the last and say nothing."""
    several = {f"--{part.name}" for part in dataclasses.fields(config) if part.type == "tuple[str, ...]"}
    words: dict[str, list[str]] = {}
    rest: list[str] = []
    place: list[str] | None = None
    for word in flags:
        if word.startswith("--"):
            place = words.setdefault(word, []) if word in several else None
            if place is not None:
                continue
        (rest if place is None else place).append(word)
    return rest + [word for flag, given in words.items() for word in (flag, *given)]


def _unboxed(complaint: str) -> str:
    """What stands in the first part of the box that tyro draws around an error, with or without Unicode."""

    def inside(line: str) -> bool:
        return not line.startswith(("╭", "─", "╰", "--"))

    lines = [line.strip("│ ") for line in complaint.splitlines()]
    below = list(itertools.dropwhile(inside, lines))[1:]
    return " ".join(itertools.takewhile(inside, below)).strip().rstrip(".") or complaint


def _take(flags: list[str], flag: str) -> tuple[list[str], str | None]:
    """The flags without `flag VALUE` (or `flag=VALUE`), and the value if it was there."""
    for i, word in enumerate(flags):
        name, joined, value = word.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if joined:
            return flags[:i] + flags[i + 1 :], value
        if i + 1 < len(flags):
            return flags[:i] + flags[i + 2 :], flags[i + 1]
    return flags, None
