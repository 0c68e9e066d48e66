"""Debian's unstable suite, read by apt in a folder of its own. Nothing of it is installed.

The signature of the suite is checked, its age is not: a mirror may keep one for long.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
ARCHIVE = "http://deb.debian.org/debian"
SUITE = "sid"
FETCH_MAX_S = 120.0

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


class Unavailable(Exception):
    """Why it cannot be had."""


class Suite:
    """The suite as apt sees it in the folder. `kind`: "deb" for packages, "deb-src" for sources."""

    def __init__(self, folder: Path, kind: str) -> None:
        """Fetches the suite's lists."""
        if not KEYRING.exists():
            raise Unavailable(f"{KEYRING} is not there: not Debian, or without debian-archive-keyring")
        self.folder = folder
        for name in ["lists/partial", "cache/archives/partial", "state"]:
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "state" / "status").touch()
        (folder / "apt.conf").write_text(CONFIGURATION.format(folder=folder), encoding="ascii")
        source = f"{kind} [signed-by={KEYRING}] {ARCHIVE} {SUITE} main\n"
        (folder / "sources.list").write_text(source, encoding="ascii")
        self.apt("update")

    def apt(self, *arguments: str) -> str:
        """Runs apt-get in the folder, and returns what it prints."""
        command = ["apt-get", *arguments]
        environment = {
            **os.environ,
            "APT_CONFIG": str(self.folder / "apt.conf"),
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C",
        }
        try:
            result = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=FETCH_MAX_S,
            )
        except subprocess.TimeoutExpired as expired:
            raise Unavailable(f"{' '.join(command)}: no answer in {FETCH_MAX_S:g} s") from expired
        except FileNotFoundError as missing:
            raise Unavailable("there is no apt-get") from missing
        if result.returncode != 0:
            raise Unavailable(f"{' '.join(command)} failed: {result.stderr.strip()}")
        return result.stdout
