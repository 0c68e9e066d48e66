"""Programs that the checks run, and how a check ends."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class Failure(Exception):
    """What is wrong with a package."""


class Skipped(Exception):
    """What the machine lacks for a check."""


def need(program: str, package: str) -> None:
    """Skips the check where a program is absent; in CI nothing is absent."""
    if shutil.which(program) is None:
        if os.environ.get("CI") == "true":
            raise Failure(f"no {program} (package {package})")
        raise Skipped(f"no {program} (package {package})")


def said(
    command: list[str | Path], environment: dict[str, str] | None = None, timeout_s: float = 60, status: int = 0
) -> str:
    """Output of a program that must exit with `status`."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as slow:
        raise Failure(f"`{' '.join(words)}` took more than {timeout_s:.0f} s: {slow.stdout!r}") from slow
    if done.returncode != status:
        raise Failure(f"`{' '.join(words)}` exited with {done.returncode}:\n{done.stdout}")
    return done.stdout
