"""The display of a run: panel, plain lines, notebook display, final summary."""
