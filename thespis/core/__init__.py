"""The contract that roles, algorithms and runtimes share. Imports nothing else of Thespis."""
