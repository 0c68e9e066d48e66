"""rdma-core's newest release with its tests, beside the host's: from Debian's unstable suite,
unpacked into a folder of its own with the interpreter and the C library that it was built for.
Nothing of it is installed.

The release changes as Debian's suite does; where it cannot be had, the reason is told.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from airdma_lab import archive, build

PACKAGES = ["python3-pyverbs", "coreutils", "dash", "iproute2"]
"""The module and its tests, and what the tests start."""
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
FOLDER = build.ROOT / "target" / "rdma-core-newest"
"""Kept between runs, as what was built."""
VENDORS = re.compile(r"test_(mlx5|efa)")
"""Tests of extensions of one vendor's NICs, each of which is skipped on others: left out."""


class Newest:
    """A folder that is the root of a system with the release."""

    def __init__(self) -> None:
        """Fetches what is not there yet."""
        if os.uname().machine != "x86_64":
            raise archive.Unavailable("only fetched for x86-64")
        packages = self._fetch()
        names = {package.name.split("_")[0]: package for package in packages}
        self.version = names["python3-pyverbs"].name.split("_")[1]
        self.root = FOLDER / "roots" / self.version
        if not self.root.exists():
            # Those of earlier releases.
            shutil.rmtree(self.root.parent, ignore_errors=True)
            self._unpack(packages)

    @property
    def upstream(self) -> str:
        """rdma-core's own version, without Debian's revision."""
        return self.version.rpartition("-")[0] or self.version

    def inside(self, argv: list[str], visible: list[Path]) -> list[str]:
        """The command that runs `argv` with the folder as root, where the kernel's file systems and
        some folders are visible.
        """
        mounts = [Path("/proc"), Path("/sys"), Path("/dev"), Path("/run"), *visible]
        script = "".join(
            f"mkdir -p '{self.root}{path}'\nmount --rbind '{path}' '{self.root}{path}'\n" for path in mounts
        )
        # No ldconfig(8) has run there.
        libraries = f"LD_LIBRARY_PATH={LIBRARIES}"
        return [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            f"{script}exec chroot '{self.root}' \"$@\"",
            "sh",
            "env",
            libraries,
            *argv,
        ]

    def _fetch(self) -> list[Path]:
        suite = archive.Suite(FOLDER, "deb")
        install = ["install", "--yes", *PACKAGES]
        suite.apt("--download-only", *install)
        # What is there already is not printed: so the question is asked where nothing is.
        elsewhere = FOLDER / "nothing"
        (elsewhere / "partial").mkdir(parents=True, exist_ok=True)
        uris = suite.apt("-o", f"Dir::Cache::Archives={elsewhere}/", "--print-uris", *install)
        return [FOLDER / "cache" / "archives" / name for name in re.findall(r"^'[^']*' (\S+)", uris, re.MULTILINE)]

    def _unpack(self, packages: list[Path]) -> None:
        new = self.root.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "etc", "root", "var/tmp"]:
            (new / folder).mkdir(parents=True)
        for name in ["bin", "sbin", "lib", "lib64"]:
            (new / name).symlink_to(f"usr/{name}")
        for package in packages:
            subprocess.run(["dpkg-deb", "-x", str(package), str(new)], check=True)
        if not (new / "usr/bin/sh").exists():
            (new / "usr/bin/sh").symlink_to("dash")
        new.rename(self.root)
