"""The wheel in a fresh virtual environment, and the source distribution."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import deb
import stage
import wheel
from said import Failure, said

HELLO = stage.SOURCE / "crates/airdma-python/examples/hello.py"


def check(profile: str) -> str:
    """Installs the wheel without an index, greets by it, and resolves the source distribution."""
    built, source = wheel.build(deb.OUTPUT, profile)
    if not re.search(r"-cp311-abi3-manylinux_2_\d+_\w+\.whl$", built.name):
        raise Failure(f"{built.name} is not for every Python from 3.11 on, or not for other distributions")
    names = zipfile.ZipFile(built).namelist()
    if not any(name.endswith("py.typed") for name in names):
        raise Failure("the wheel has no py.typed")
    with tempfile.TemporaryDirectory() as scratch:
        said([sys.executable, "-m", "venv", scratch])
        python = Path(scratch) / "bin/python"
        said([python, "-m", "pip", "install", "--no-index", "--quiet", built])
        greet(python)
        said(["tar", "-C", scratch, "-xzf", source])
        unpacked = Path(scratch) / f"airdma-{stage.version()}"
        # All crates that it needs are in it.
        said(["cargo", "metadata", "--offline", "--format-version", "1", "--manifest-path", unpacked / "Cargo.toml"])
    return f" {built.name}, {built.stat().st_size / 2**20:.1f} MiB"


def greet(python: Path) -> None:
    """The example `hello.py` between two processes, from a folder without the package's source."""
    listen = [str(python), str(HELLO), "listen", "127.0.0.1"]
    with subprocess.Popen(listen, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as listener:
        try:
            deadline = time.monotonic() + 30
            command = [str(python), str(HELLO), "greet", "127.0.0.1"]
            while True:
                greeted = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, env=os.environ)
                if greeted.returncode == 0:
                    break
                if time.monotonic() > deadline:
                    raise Failure(f"hello.py: {greeted.stderr}")
                time.sleep(0.2)
            heard, _ = listener.communicate(timeout=20)
        finally:
            listener.kill()
    if "says: " not in heard:
        raise Failure(f"hello.py listened and heard {heard!r}")
