"""The interface between an inference server and its listeners (gRPC, shared memory)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from thespis.core.payloads import ActResponse, InferenceEndpoint
from thespis.core.types import Stream
from thespis.experience.trajectory_assembler import StepMessage


class Responder(Protocol):
    """The sender of a request, which waits for a response."""

    @property
    def cancelled(self) -> bool:
        """Whether the client no longer waits."""

    def respond(self, response: ActResponse) -> None:
        """Send the response."""


OnRequest = Callable[[StepMessage, Responder], None]
"""Handler of a received request."""


class InferenceListener(Protocol):
    """Accepts one stream per actor."""

    async def open_session(self, stream: Stream, on_request: OnRequest) -> InferenceEndpoint:
        """Expect an incarnation of an actor; return where and with which token it connects."""

    async def close(self) -> None:
        """Close all streams and stop listening."""
