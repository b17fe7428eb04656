"""Runs side by side: what was compared, what came out, and how it is shown."""
