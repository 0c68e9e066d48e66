"""Makes all that a release has, with checksums and a bill of materials.

  python3 packaging/release.py [--built FOLDER] [--output FOLDER] [--without-wheel]

Packs what was built: two runs over the same binaries make the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import deb
import image
import rpm
import sbom
import stage
import wheel

OUTPUT = stage.SOURCE / "target/release-files"


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the files of a release")
    parser.add_argument("--built", type=Path, default=stage.BUILT)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--without-wheel", action="store_true", help="leave the Python package out")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    print(build(options.built, options.output, not options.without_wheel))
    return 0


def build(built: Path, output: Path, with_wheel: bool) -> str:
    """Makes the files, and returns the list of their checksums, which is one of them."""
    files = [deb.build(built, output), rpm.build(built, output), image.build(built, output)]
    if with_wheel:
        files += wheel.build(output, "release")
    bill = output / f"airdma-{stage.version()}.cdx.json"
    document = sbom.document(stage.version(), image.copied(built))
    bill.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    files.append(bill)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files)]
    (output / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
