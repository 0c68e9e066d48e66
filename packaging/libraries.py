"""The shared libraries of the machine that the container image has copies of, and their licences.

Only of Debian packages, whose licences are known: each has a file `copyright`, and the texts that it
refers to are in /usr/share/common-licenses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

COMMON = Path("/usr/share/common-licenses")
_REFERENCE = re.compile(rf"{COMMON}/([A-Za-z]+(?:-[0-9]+(?:\.[0-9]+)*)?)")


@dataclass(frozen=True, order=True)
class Package:
    """A Debian package with libraries of the image."""

    name: str
    version: str
    architecture: str

    @property
    def copyright(self) -> Path:
        return Path("/usr/share/doc", self.name, "copyright")


def needed(files: list[Path]) -> list[Path]:
    """The shared libraries of the machine that these files load, and their loader, by the names by
    which they are searched for.
    """
    found: set[str] = set()
    for file in files:
        said = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        found |= set(re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE))
    return sorted(Path(name) for name in found)


def packages(libraries: list[Path]) -> list[Package]:
    """The packages that have them."""
    return sorted({package(library) for library in libraries})


def package(library: Path) -> Package:
    """The package that has a library, by whichever of its names (/lib may be a link)."""
    # --search takes a pattern.
    found = _said("dpkg-query", "--search", f"*/{library.name}")
    for line in found.splitlines():
        owner, _, path = line.rpartition(": ")
        if owner and Path(path).resolve() == library.resolve():
            shown = _said("dpkg-query", "--show", "--showformat=${Package} ${Version} ${Architecture}", owner)
            return Package(*shown.split())
    sys.exit(f"packaging/libraries.py: no Debian package has {library}, so that its licence is not known")


def licences(texts: list[str]) -> list[Path]:
    """The common licences that these texts refer to."""
    names = {name for text in texts for name in _REFERENCE.findall(text)}
    return sorted(path for name in names if (path := COMMON / name).is_file())


def component(package: Package) -> dict[str, Any]:
    """Its entry in the bill of materials, with its licence."""
    text = package.copyright.read_text(encoding="utf-8", errors="replace")
    place = str(package.copyright).lstrip("/")
    return {
        "type": "library",
        "name": package.name,
        "version": package.version,
        "description": "copied into the container image",
        "purl": f"pkg:deb/debian/{package.name}@{quote(package.version)}?arch={package.architecture}",
        "bom-ref": f"deb:{package.name}@{package.version}",
        "licenses": [{"license": {"name": place, "text": {"contentType": "text/plain", "content": text}}}],
    }


def _said(*command: str) -> str:
    if not shutil.which(command[0]):
        sys.exit(f"packaging/libraries.py: no {command[0]}: the image and the bill of materials are made on a Debian")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
