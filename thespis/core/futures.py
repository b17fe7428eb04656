"""Futures of the running event loop."""

from __future__ import annotations

import asyncio
from typing import Any


def new_future() -> asyncio.Future[Any]:
    """A future that a role completes, e.g. with the reply to a call that waits."""
    return asyncio.get_running_loop().create_future()
