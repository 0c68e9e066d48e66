"""Errors, sorted by whose fault they are. The text says what happened and what to do next."""

from __future__ import annotations

__all__ = ["ClosedError", "Error", "HostError", "NetworkError", "PeerError", "UsageError"]


class Error(Exception):
    """Base class of the package's errors. The operation's region has its memory again."""


class UsageError(Error, ValueError):
    """Yours: an argument that the call does not take, a region that is in flight."""


class PeerError(Error, ConnectionError):
    """The peer's: it refused, ended the connection, or died."""


class ClosedError(PeerError, EOFError):
    """The connection was simply closed, by either side: the equivalent of end of file."""


class NetworkError(Error, ConnectionError):
    """The network: no answer arrives."""


class HostError(Error, OSError):
    """The operating system or this library: no memory or descriptors, a port in use."""
