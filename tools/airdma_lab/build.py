"""The binaries under test."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""


def binary() -> Path:
    """The `airdma` binary: $AIRDMA_BINARY, or cargo's release build."""
    chosen = os.environ.get("AIRDMA_BINARY")
    if chosen:
        return Path(chosen)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return (ROOT / target / "release" / "airdma").resolve()


def library() -> Path:
    """The preload."""
    return binary().with_name("libairdma.so")


def dropin() -> Path:
    """The drop-in directory of `make dropin`, for LD_LIBRARY_PATH."""
    return binary().with_name("dropin")


def require() -> None:
    """Leaves with exit code 2 if the binaries are not there."""
    if not binary().exists():
        print(f"{binary()} does not exist: run `make build` first, or set AIRDMA_BINARY.", file=sys.stderr)
        sys.exit(2)


def with_airdma(argv: list[str]) -> list[str]:
    """The command that runs `argv` on airdma."""
    return [str(binary()), "run", "--", *argv]
