"""The free memory of this machine."""

from __future__ import annotations

import os


def available_memory() -> int:
    """Return the bytes that processes can still allocate without swapping."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
