"""Messages between processes: sockets, shared memory, gRPC."""
