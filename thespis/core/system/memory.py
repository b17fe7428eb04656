"""How much memory this machine has left."""

from __future__ import annotations

import os


def available_memory() -> int:
    """Bytes that a process could still take without making the machine swap."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
