"""Makes the wheel and the source distribution of the Python package, by maturin in a virtual
environment of its own.

  python3 packaging/wheel.py [--output FOLDER] [--profile PROFILE]

Prints the paths: in target/packages by default. The wheel is for every Python from 3.11 on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import deb
import stage

MATURIN = "maturin==1.16.0"
ENVIRONMENT = stage.SOURCE / "target/maturin"
MANIFEST = stage.SOURCE / "crates/airdma-python/Cargo.toml"


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the wheel of the Python package")
    parser.add_argument("--output", type=Path, default=deb.OUTPUT)
    parser.add_argument("--profile", default="release")
    options = parser.parse_args()
    for path in build(options.output, options.profile):
        print(path)
    return 0


def build(output: Path, profile: str) -> tuple[Path, Path]:
    """The wheel and the source distribution."""
    program = ENVIRONMENT / "bin/maturin"
    if not program.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run([ENVIRONMENT / "bin/pip", "install", "--quiet", MATURIN], check=True)
    for old in [*output.glob("airdma-*.whl"), *output.glob("airdma-*.tar.gz")]:
        old.unlink()
    common: list[str | Path] = ["--quiet", "--manifest-path", MANIFEST, "--out", output]
    subprocess.run([program, "build", "--profile", profile, "--strip", *common], check=True)
    subprocess.run([program, "sdist", *common[1:]], check=True, stderr=subprocess.DEVNULL)
    return next(output.glob("airdma-*.whl")), next(output.glob("airdma-*.tar.gz"))


if __name__ == "__main__":
    sys.exit(main())
