"""How bytes cross a process boundary: sockets, shared memory, gRPC."""
