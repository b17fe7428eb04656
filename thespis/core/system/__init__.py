"""Files, cores, memory and processes of this machine."""
