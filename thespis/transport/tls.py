"""TLS certificates for streams between machines. The files are checked before a run starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from thespis.core.errors import ThespisError


@dataclass(frozen=True)
class Tls:
    """`cert`, `key`: the server's certificate and private key. `ca`: the authority that actors trust.

    `name`: the host name in the certificate; if empty, the address of the server.
    """

    cert: Path
    key: Path
    ca: Path
    name: str = ""

    def check(self) -> None:
        """Raise ThespisError if a file is missing, is not PEM, or the key does not match the certificate."""
        for file in (self.cert, self.key, self.ca):
            if file.exists() and not file.is_file():  # reading a FIFO would block
                raise ThespisError(f"{file} is not a file; give PEM files as --tls-cert, --tls-key and --tls-ca")
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            server.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            raise ThespisError(
                f"--tls-cert {self.cert} and --tls-key {self.key} cannot be used: {error}; "
                "give a certificate and its private key, without a password, as PEM files"
            ) from error
        try:
            client.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            raise ThespisError(f"--tls-ca {self.ca} cannot be used: {error}; give a PEM file") from error

    def server(self) -> Any:
        """Return gRPC credentials of a server."""
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.cert.read_bytes())])

    def client(self) -> Any:
        """Return gRPC credentials of a client."""
        return grpc.ssl_channel_credentials(self.ca.read_bytes())

    @property
    def options(self) -> list[tuple[str, Any]]:
        """gRPC options of a client's channel."""
        return [("grpc.ssl_target_name_override", self.name)] if self.name else []
