"""The files of a release, made twice."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import release
from said import Failure


def check(built: Path) -> str:
    """The same bytes whatever the umask and the clock's zone are, with checksums that hold."""
    lists = []
    umask = os.umask(0o022)
    try:
        for mask, zone in ((0o022, "UTC"), (0o077, "Asia/Tokyo")):
            os.umask(mask)
            os.environ["TZ"] = zone
            with tempfile.TemporaryDirectory() as output:
                lists.append(release.build(built, Path(output), with_wheel=False))
                command = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
                if subprocess.run(command, cwd=output, check=False).returncode != 0:
                    raise Failure("SHA256SUMS does not fit the files")
    finally:
        os.umask(umask)
        del os.environ["TZ"]
    if lists[0] != lists[1]:
        raise Failure(f"two releases differ:\n{lists[0]}\n{lists[1]}")
    return f" {len(lists[0].splitlines())} files"
