"""Command lines whose mistakes are told like all others: in one line."""

from __future__ import annotations

import argparse
from typing import NoReturn

from thespis.errors import ThespisError


class Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is raised instead of printed below the usage."""

    def error(self, message: str) -> NoReturn:
        raise ThespisError(f"{message}; see {self.prog} --help")
