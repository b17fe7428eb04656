"""Streams between actors and an inference server, beside the runtime's own lines: shared memory, or gRPC."""
