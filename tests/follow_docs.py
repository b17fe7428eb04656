"""Runs the `thespis` commands of README and docs, page by page and in order, each for a few seconds.

    python tests/follow_docs.py              all pages, about 15 minutes
    python tests/follow_docs.py apex.md      some of them

What the reader has to bring (a cluster, certificates, a package of one's own) is left out and told.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import PAGES, ROOT, commands

BROUGHT = re.compile(r"--ray-address|my_package|minari:|--tls-|--callback|DIR|\$|pumped")
COST_MODEL = "work: {env_step: {base: 1e-4}}\n"
SECONDS = 300


def shortened(words: list[str]) -> list[str]:
    """The command with a budget of seconds instead of its own."""
    command = words[0]
    if command == "train" and "--help" not in words:
        return [*words, "--total-seconds", "3", "--eval-episodes", "1"]
    if command == "resume":
        return [*words, "--total-seconds", "20"]
    if command == "compare":
        kept = [word for word in words if word not in ("15", "30", "2", "3")]
        return [word for kind in kept for word in ([kind, "1"] if kind in ("--seconds", "--seeds") else [kind])]
    return words


def expanded(pattern: str, directory: Path) -> list[str]:
    """What a shell would put in its place."""
    return sorted(str(path.relative_to(directory)) for path in directory.glob(pattern))


def follow(page: Path, directory: Path) -> list[str]:
    """Run the commands of a page; returns those that failed, with the last line they said."""
    failed = []
    for words in commands(page):
        result = " ".join(words)
        if BROUGHT.search(result):
            print(f"  left out  thespis {result}", flush=True)
            continue
        named = [found for word in shortened(words) for found in (expanded(word, directory) if "*" in word else [word])]
        line = [sys.executable, "-m", "thespis.cli.main", *named]
        ended = subprocess.run(line, cwd=directory, capture_output=True, text=True, timeout=SECONDS)
        print(f"  exit {ended.returncode}    thespis {result}", flush=True)
        if ended.returncode:
            failed.append(f"{page.name}: thespis {result}: {(ended.stderr.splitlines() or ['?'])[-1]}")
    return failed


def main(names: list[str]) -> int:
    failed = []
    with tempfile.TemporaryDirectory() as directory:  # one for all: some pages use runs of pages before them
        (Path(directory) / "lan.yaml").write_text(COST_MODEL)
        shutil.copytree(ROOT / "examples", Path(directory) / "examples")
        for page in PAGES:
            if (not names or page.name in names) and commands(page):
                print(page.name, flush=True)
                failed += follow(page, Path(directory))
    print("\n".join(failed) or "all commands work")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
