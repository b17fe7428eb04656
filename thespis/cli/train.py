"""`thespis train ARCH`: trains an architecture. Every field of its config is a flag."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thespis.cli.env_kwargs import take_env_kwargs
from thespis.cli.flags import expand
from thespis.cli.help import about_defaults, help_text
from thespis.core.config_io import with_settings
from thespis.core.errors import ThespisError
from thespis.core.settings import flattened
from thespis.training.launch import launch
from thespis.training.presets import named_env
from thespis.training.registry import PAIRS, architectures, defaults, load_config, pair, presets

if TYPE_CHECKING:
    from thespis.core.config import Experiment
    from thespis.training.trained_run import TrainedRun

_SEVERAL = ("tuple[str, ...]", "tuple[Spec, ...]")


def run(words: list[str]) -> int:
    """Run the command and return its exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(f"usage: thespis train ARCH [--env ID] [--config FILE] [settings]\n\nARCH: {', '.join(architectures())}")
        print(f"or a short name of an algorithm in its usual architecture: {', '.join(PAIRS)}")
        print("\nthespis train ARCH --help lists every setting of an architecture; thespis list describes them all.")
        return 0
    name, *flags = words
    if name.startswith("-"):
        raise ThespisError("name the architecture first: thespis train impala --env CartPole-v1")
    cfg = parse_settings(name, flags)
    return outcome(lambda: launch(name, cfg))


def outcome(train: Callable[[], TrainedRun]) -> int:
    """Call `train` and return the exit code of its run. Later signals do not change the exit code."""
    from thespis.runtime.signals import ignore_ending_signals
    from thespis.training.trained_run import RunFailed

    atexit.register(ignore_ending_signals)  # registered first, called last: other hooks can still be interrupted
    try:
        trained = train()
    except RunFailed as failure:
        print(f"thespis: {failure}\n\nthe run is in {failure.path}", file=sys.stderr)
        return 1
    return 130 if trained.summary["exit_reason"] == "interrupted" else 0


def parse_settings(name: str, flags: list[str]) -> Experiment:
    """Parse the settings of a run. Flags override --config FILE, which overrides presets, which override defaults."""
    flags, file = take(flags, "--config")
    data: dict[str, Any] = {}
    if file is not None:
        saved, data = load_config(Path(file))
        wanted, paired = pair(name)
        learned = data.get("algorithm")
        if saved != wanted or (paired is not None and learned not in (None, paired)):
            what = saved if saved != wanted else f"{saved} with {learned}"
            raise ThespisError(
                f"{file} is a config of {what}, not of {name}; run `thespis train {saved} --config {file}`"
            )
        # The new run writes to its own directory.
        data.pop("run_dir", None)
    _, env = take(flags, "--env")
    # The algorithm and the time budget change other defaults.
    _, algorithm = take(flags, "--algorithm")
    _, seconds = take(flags, "--total-seconds")
    if algorithm is not None:
        data["algorithm"] = algorithm
    if seconds is not None and take(flags, "--total-steps")[1] is None:
        data["total_seconds"] = seconds
    default = defaults(name, env, data)
    found = presets(name, default)
    patterns = [each.pattern for each in found if each.pattern != "*"]
    about = about_defaults(default, patterns, env or named_env(found))
    return parse(f"thespis train {name}", default, flags, "[--env ID] [--config FILE]", about)


def parse(command: str, default: Experiment, flags: list[str], usage: str, about: str) -> Experiment:
    """Override the settings `default` by the flags of a command. `usage` and `about` appear in its help."""
    if {"-h", "--help"}.intersection(flags):
        print(help_text(f"{command} {usage}".rstrip(), default, about))
        raise SystemExit(0)
    flags, env_kwargs = take_env_kwargs(flags)
    env_kwargs = {**default.env_kwargs, **env_kwargs}
    try:
        flags = _gathered(expand(flags, default), default)
    except ThespisError as error:
        raise ThespisError(f"{error}; see {command} --help") from None
    import tyro

    flat, complaint = flattened(dataclasses.replace(default, env_kwargs={})), io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            given = tyro.cli(type(flat), args=flags, default=flat, prog=command)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ThespisError(f"{_unboxed(complaint.getvalue())}; see {command} --help") from None
    changed = {part.name: getattr(given, part.name) for part in dataclasses.fields(given)}
    return with_settings(default, {**changed, "env_kwargs": env_kwargs})


def _gathered(flags: list[str], cfg: Experiment) -> list[str]:
    """Merge repeated flags that take several values; tyro would silently keep only the last one."""
    several = {f"--{part.name.replace('_', '-')}" for part in dataclasses.fields(cfg) if part.type in _SEVERAL}
    words: dict[str, list[str]] = {}
    rest: list[str] = []
    values: list[str] | None = None
    for word in flags:
        if word.startswith("--"):
            flag, joined, value = word.partition("=")
            flag = flag.replace("_", "-")
            values = words.setdefault(flag, []) if flag in several else None
            if values is not None:
                values += [value] if joined else []
                continue
        (rest if values is None else values).append(word)
    return rest + [word for flag, given in words.items() for word in (flag, *given)]


def _unboxed(complaint: str) -> str:
    """Extract the error message from the box that tyro draws around it, with or without Unicode."""

    def inside(line: str) -> bool:
        return not line.startswith(("╭", "─", "╰", "--"))

    lines = [line.strip("│ ") for line in complaint.splitlines()]
    below = list(itertools.dropwhile(inside, lines))[1:]
    return " ".join(itertools.takewhile(inside, below)).strip().rstrip(".") or complaint


def take(flags: list[str], flag: str) -> tuple[list[str], str | None]:
    """Remove `flag VALUE` or `flag=VALUE` from the flags; return the other flags, and the value or None."""
    for i, word in enumerate(flags):
        name, joined, value = word.partition("=")
        if name.replace("_", "-") != flag:
            continue
        if joined:
            return flags[:i] + flags[i + 1 :], value
        if i + 1 < len(flags):
            return flags[:i] + flags[i + 2 :], flags[i + 1]
    return flags, None
