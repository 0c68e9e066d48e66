"""The package for Fedora and its relatives, with rpm's own tools and an empty system."""

from __future__ import annotations

import tempfile
from pathlib import Path

import deb
import rpm
import stage
from said import Failure, need, said

ELSEWHERE = {
    f"usr/{stage.layout('fedora').libraries}": f"usr/{stage.layout('debian').libraries}",
    "usr/share/zsh/site-functions": "usr/share/zsh/vendor-completions",
}
"""Folders of this package -> of Debian's."""
DEBIANS = ("usr/share/lintian", "usr/share/doc/airdma/changelog.Debian.gz")


def check(built: Path, debian: Path) -> str:
    """Has the files of Debian's package, provides no rdma-core, is installed, runs, and leaves
    nothing.
    """
    need("rpmbuild", "rpm")
    package = rpm.build(built, deb.OUTPUT, "w1.gzdio")
    files = set(said(["rpm", "-qpl", package]).split())
    expected = {f"/{place(path, debian)}" for path in debian.rglob("*") if path.is_symlink() or path.is_file()}
    lacking = {name for name in expected - files if not name[1:].startswith(DEBIANS)}
    if lacking:
        raise Failure(f"absent: {', '.join(sorted(lacking))}")
    provided = said(["rpm", "-qp", "--provides", package])
    if "ibverbs" in provided or "libairdma_north.so.0" not in provided:
        raise Failure(f"it provides:\n{provided}")
    with tempfile.TemporaryDirectory() as root:
        whole = ["rpm", "--root", root, "--nodeps", "--noscripts"]
        said([*whole, "--install", package])
        version = said([Path(root) / "usr/bin/airdma", "--version"])
        said([Path(root) / "usr/bin/airdma", "run", "--explain", "--dropin", "--", "bash"], {"AIRDMA_LOOPBACK": "1"})
        said([*whole, "--erase", "airdma"])
        left = [str(path) for path in Path(root).rglob("*") if "airdma" in path.name]
        if left:
            raise Failure(f"left behind: {', '.join(left)}")
    return f" {version.strip()}, {package.stat().st_size / 2**20:.1f} MiB"


def place(path: Path, debian: Path) -> str:
    """Where a file of Debian's package is in this one."""
    name = path.relative_to(debian).as_posix()
    for here, there in ELSEWHERE.items():
        name = name.replace(there, here)
    return name
