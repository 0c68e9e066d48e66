"""Errors, sorted by whose fault they are. The text says what happened and what to do next."""

from __future__ import annotations

__all__ = ["ClosedError", "Error", "HostError", "NetworkError", "PeerError", "UsageError"]


class Error(Exception):
    """What calls of this package raise. A region that was given to the operation has its memory again."""


class UsageError(Error, ValueError):
    """Yours: an argument that the call does not take, a region that is in flight."""


class PeerError(Error, ConnectionError):
    """The peer's: it refused, ended the connection, or died."""


class ClosedError(PeerError, EOFError):
    """Nothing is wrong but that the peer, or you, closed the connection: what the end of a file is to a reader."""


class NetworkError(Error, ConnectionError):
    """The network's: nobody answers."""


class HostError(Error, OSError):
    """The operating system's, or this library's: no memory, no descriptors, a port that is taken."""
