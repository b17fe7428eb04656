"""Certificates for streams between machines: files that are checked before a run starts."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from thespis.core.errors import ThespisError


@dataclass(frozen=True)
class Tls:
    """`cert`, `key`: what the server shows. `ca`: what actors trust. `name`: whom the certificate is for.

    An empty name stands for the address that the server listens at.
    """

    cert: Path
    key: Path
    ca: Path
    name: str = ""

    def check(self) -> None:
        """Refuse files that are not there, are no certificates, or do not belong together."""
        for file in (self.cert, self.key, self.ca):
            if file.exists() and not file.is_file():  # a FIFO would be waited for
                raise ThespisError(f"{file} is no file; give PEM files as --tls-cert, --tls-key and --tls-ca")
        shown, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            shown.load_cert_chain(self.cert, self.key, password="")
        except (OSError, ValueError) as error:
            raise ThespisError(
                f"--tls-cert {self.cert} and --tls-key {self.key} cannot be used: {error}; "
                "give a certificate and its private key, without a password, as PEM files"
            ) from error
        try:
            trusted.load_verify_locations(self.ca)
        except (OSError, ValueError) as error:
            raise ThespisError(f"--tls-ca {self.ca} cannot be used: {error}; give a PEM file") from error

    def server(self) -> Any:
        return grpc.ssl_server_credentials([(self.key.read_bytes(), self.cert.read_bytes())])

    def client(self) -> Any:
        return grpc.ssl_channel_credentials(self.ca.read_bytes())

    @property
    def options(self) -> list[tuple[str, Any]]:
        """For the channel of a client."""
        return [("grpc.ssl_target_name_override", self.name)] if self.name else []
