"""The licence texts of all crates of others that are compiled into the packages.

  python3 packaging/licences.py > THIRD-PARTY

The texts are the files that the crates themselves have, in the sources that cargo has fetched.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import sbom

TEXT = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)([-_. ].*)?", re.IGNORECASE)
"""Names of files with licences."""
STANDARD_LIBRARY = "the standard library of Rust, by its contributors (MIT OR Apache-2.0)"
RULE = "=" * 80


class MissingTextError(Exception):
    """Crates without a licence that could be shipped with them."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"no licence text in {', '.join(names)}: packaging/licences.py has to be told of one")


def main() -> int:
    print(document(), end="")
    return 0


def document() -> str:
    """Each text once, below the crates that have it; the same whenever it is written."""
    crates = shipped()
    missing = [title(crate) for crate in crates if not texts(crate)]
    if missing:
        raise MissingTextError(missing)
    owners: dict[str, list[str]] = {}
    for crate in crates:
        for text in texts(crate):
            owners.setdefault(text, []).append(title(crate))
    apache = (sbom.SOURCE / "LICENSE-APACHE").read_text(encoding="utf-8")
    owners.setdefault(plain(apache), []).append(STANDARD_LIBRARY)
    parts = [f"airdma contains code of {len(crates)} crates of others, under these licences.\n"]
    for text, names in sorted(owners.items(), key=lambda it: it[1]):
        listed = "\n".join(f"  {name}" for name in names)
        parts.append(f"{RULE}\n{listed}\n{RULE}\n\n{text}")
    return "\n".join(parts)


def shipped() -> list[dict[str, Any]]:
    """The crates of others, by name."""
    metadata = sbom.metadata()
    packages = {package["id"]: package for package in metadata["packages"]}
    found = [packages[name] for name in sbom.compiled_in(metadata)]
    foreign = [package for package in found if package["source"]]
    return sorted(foreign, key=lambda it: (it["name"], it["version"]))


def title(crate: dict[str, Any]) -> str:
    return f"{crate['name']} {crate['version']} ({crate['license'] or 'see below'})"


def texts(crate: dict[str, Any]) -> list[str]:
    """What its files with licences say; some crates have a folder of them."""
    folder = Path(crate["manifest_path"]).parent
    found = sorted(path for path in folder.iterdir() if TEXT.fullmatch(path.name))
    files = [file for path in found for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [plain(file.read_text(encoding="utf-8", errors="replace")) for file in files if file.is_file()]


def plain(text: str) -> str:
    """Without differences that are none: line ends and blanks at them."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(main())
