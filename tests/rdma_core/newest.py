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

from airdma_lab import build

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHIVE = "http://deb.debian.org/debian"
SUITE = "sid"
PACKAGES = ["python3-pyverbs", "coreutils", "dash", "iproute2"]
"""The module and its tests, and what the tests start."""
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
FOLDER = build.ROOT / "target" / "rdma-core-newest"
"""Kept between runs, as what was built."""
FETCH_MAX_S = 120.0
VENDORS = re.compile(r"test_(mlx5|efa)")
"""Tests of extensions of one vendor's NICs, each of which is skipped on others: left out."""

CONFIGURATION = """\
Dir::State "{folder}/state";
Dir::State::Lists "{folder}/lists";
Dir::State::status "{folder}/state/status";
Dir::Cache "{folder}/cache";
Dir::Etc::SourceList "{folder}/sources.list";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Parts "/dev/null";
Dir::Etc::Main "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
APT::Architecture "amd64";
APT::Architectures "amd64";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::http::Timeout "20";
"""
"""The signature of the suite is checked, its age is not: a mirror may keep one for long."""


class Unavailable(Exception):
    """Why it cannot be had."""


class Newest:
    """A folder that is the root of a system with the release."""

    def __init__(self) -> None:
        """Fetches what is not there yet."""
        if not KEYRING.exists():
            raise Unavailable(f"{KEYRING} is not there: not Debian, or without debian-archive-keyring")
        if os.uname().machine != "x86_64":
            raise Unavailable("only fetched for x86-64")
        archives = self._fetch()
        names = {archive.name.split("_")[0]: archive for archive in archives}
        self.version = names["python3-pyverbs"].name.split("_")[1]
        self.root = FOLDER / "roots" / self.version
        if not self.root.exists():
            # Those of earlier releases.
            shutil.rmtree(self.root.parent, ignore_errors=True)
            self._unpack(archives)

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
        for folder in ["lists/partial", "cache/archives/partial", "state"]:
            (FOLDER / folder).mkdir(parents=True, exist_ok=True)
        (FOLDER / "state" / "status").touch()
        (FOLDER / "apt.conf").write_text(CONFIGURATION.format(folder=FOLDER), encoding="ascii")
        (FOLDER / "sources.list").write_text(f"deb [signed-by={KEYRING}] {ARCHIVE} {SUITE} main\n", encoding="ascii")
        _apt("update")
        install = ["install", "--yes", *PACKAGES]
        _apt("--download-only", *install)
        # What is there already is not printed: so the question is asked where nothing is.
        elsewhere = FOLDER / "nothing"
        (elsewhere / "partial").mkdir(parents=True, exist_ok=True)
        uris = _apt("-o", f"Dir::Cache::Archives={elsewhere}/", "--print-uris", *install)
        return [FOLDER / "cache" / "archives" / name for name in re.findall(r"^'[^']*' (\S+)", uris, re.MULTILINE)]

    def _unpack(self, archives: list[Path]) -> None:
        new = self.root.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        for folder in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "tmp", "etc", "root", "var/tmp"]:
            (new / folder).mkdir(parents=True)
        for name in ["bin", "sbin", "lib", "lib64"]:
            (new / name).symlink_to(f"usr/{name}")
        for archive in archives:
            subprocess.run(["dpkg-deb", "-x", str(archive), str(new)], check=True)
        if not (new / "usr/bin/sh").exists():
            (new / "usr/bin/sh").symlink_to("dash")
        new.rename(self.root)


def _apt(*arguments: str) -> str:
    command = ["apt-get", *arguments]
    environment = {
        **os.environ,
        "APT_CONFIG": str(FOLDER / "apt.conf"),
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C",
    }
    try:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=FETCH_MAX_S
        )
    except subprocess.TimeoutExpired as expired:
        raise Unavailable(f"{' '.join(command)}: no answer in {FETCH_MAX_S:g} s") from expired
    except FileNotFoundError as missing:
        raise Unavailable("there is no apt-get") from missing
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout
