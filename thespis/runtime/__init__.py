"""The runtimes: they run a program in a simulation, on local processes or on a Ray cluster."""
