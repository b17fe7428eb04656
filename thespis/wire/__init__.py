"""Streams between actors and an inference server that leave the runtime's own lines: gRPC, with a fixed schema."""
