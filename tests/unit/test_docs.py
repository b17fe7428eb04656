"""Pages can be followed: every link has a target, and `thespis` accepts every command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pages import PAGES, ROOT, commands

from thespis.cli import train
from thespis.cli.main import main
from thespis.training.launch import check_settings

ABSENT = re.compile(r"my_package|DIR|\.pem|\.yaml|pumped|demos|Swimmer|ALE/|minari|\$")
"""Commands that need something from the reader, or more than the package itself."""


TRAIN = [(page.name, words[1:]) for page in PAGES for words in commands(page) if words[0] == "train"]
OTHERS = [(page.name, words) for page in PAGES for words in commands(page) if words[0] != "train"]


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub does."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}: there is no such heading"


@pytest.mark.parametrize(("page", "words"), TRAIN, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_training_commands_are_understood(
    page: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)  # commands name examples relative to the root
    if "--help" in words:
        with pytest.raises(SystemExit) as stop:
            main(["train", *words])
        assert stop.value.code == 0
        return
    name, *flags = words
    if ABSENT.search(" ".join(words)):
        train.parse_settings(name, flags)
    else:
        check_settings(name, train.parse_settings(name, flags))


@pytest.mark.parametrize(("page", "words"), OTHERS, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_other_commands_are_understood(
    page: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands are valid up to the runs that they name, which do not exist here."""
    monkeypatch.chdir(tmp_path)
    performed: list[Any] = []
    monkeypatch.setattr("thespis.cli.compare._compare", lambda args: performed.append(args) or 0)
    code = main(words)
    said = capsys.readouterr().err
    assert code == 0 or ("runs/" in said and "--help" not in said), said


def test_there_are_commands_to_look_at() -> None:
    assert len(TRAIN) > 50 and len(OTHERS) > 5
