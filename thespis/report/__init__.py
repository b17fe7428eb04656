"""Comparisons of runs: plan, results, statistics and reports."""
