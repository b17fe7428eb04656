"""Runs the `thespis` commands of README and docs, page by page and in order, each for a few seconds.

    python tests/follow_docs.py              all pages, about 15 minutes
    python tests/follow_docs.py apex.md      some of them

Commands that need something from the reader (a cluster, certificates, an own package) are skipped and listed.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import PAGES, ROOT, commands

NEEDED = re.compile(r"--ray-address|my_package|minari:|--tls-|--callback|DIR|\$|pumped")
MUJOCO = re.compile(r"Swimmer-v5|Hopper-v5|HalfCheetah-v5")
FILE = re.compile(r"^```yaml\n(# ([\w-]+\.yaml)\b.*?)^```", re.MULTILINE | re.DOTALL)
"""A block of YAML that begins with the name of a file. Commands of the page may use this file."""
SECONDS = 300


def needs_reader(command: str) -> bool:
    """Whether a command needs something from the reader."""
    return bool(NEEDED.search(command)) or (not importlib.util.find_spec("mujoco") and bool(MUJOCO.search(command)))


def shortened(words: list[str], directory: Path) -> list[str]:
    """Replace the budget of a command by a few seconds."""
    command = words[0]
    if command == "train" and "--help" not in words:
        steps = ["--total-steps", "20000"] if words[1] == "pbt" else []  # the members of a population share its steps
        return [*words, *steps, "--total-seconds", "3", "--eval-episodes", "1"]
    if command == "resume":
        used = json.loads((directory / words[1] / "summary.json").read_text())["wall_seconds"]
        return [*words, "--total-seconds", f"{used + 3:.0f}"]
    if command == "compare":
        kept = [word for word in words if word not in ("15", "30", "2", "3")]
        return [word for kind in kept for word in ([kind, "1"] if kind in ("--seconds", "--seeds") else [kind])]
    return words


def expanded(pattern: str, directory: Path) -> list[str]:
    """Expand a pattern as a shell does."""
    return sorted(str(path.relative_to(directory)) for path in directory.glob(pattern))


def follow(page: Path, directory: Path) -> list[str]:
    """Run the commands of a page; return the failed ones, each with the last line of its errors."""
    failed = []
    for text, name in FILE.findall(page.read_text()):
        (directory / name).write_text(text)
    for words in commands(page):
        result = " ".join(words)
        if needs_reader(result):
            print(f"  skipped   thespis {result}", flush=True)
            continue
        if words[0] == "record":  # another page may have written the same demonstrations
            shutil.rmtree(directory / words[words.index("--out") + 1], ignore_errors=True)
        named = [
            found
            for word in shortened(words, directory)
            for found in (expanded(word, directory) if "*" in word else [word])
        ]
        line = [sys.executable, "-m", "thespis.cli.main", *named]
        ended = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
        print(f"  exit {ended.returncode}    thespis {result}", flush=True)
        if ended.returncode:
            failed.append(f"{page.name}: thespis {result}: {(ended.stderr.splitlines() or ['?'])[-1]}")
    return failed


def main(names: list[str]) -> int:
    failed = []
    with tempfile.TemporaryDirectory() as directory:  # shared, because some pages use runs of earlier pages
        shutil.copytree(ROOT / "examples", Path(directory) / "examples")
        for page in PAGES:
            if (not names or page.name in names) and commands(page):
                print(page.name, flush=True)
                failed += follow(page, Path(directory))
    print("\n".join(failed) or "all commands work")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
