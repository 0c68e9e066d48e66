"""Programs that PyPI has, as `pip install` brings them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from programs.line import Line, Unavailable
from programs.middleware import TWO_HOSTS, open_mpi, write_open_mpi_agent

HERE = Path(__file__).resolve().parent
_IBVERBS = "ibverbs==2026.10.22"
_MPI4PY = "mpi4py==4.1.2"
_PORT = 7755


def _install(requirement: str, check: str, folder: Path) -> None:
    shutil.copy(HERE / check, folder)
    argv = [
        "python3",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
    ]
    installed = subprocess.run(
        [*argv, "--target", str(folder / "site"), "--upgrade", requirement], capture_output=True, text=True, check=False
    )
    if installed.returncode != 0:
        raise Unavailable(f"pip install {requirement}: {installed.stderr.strip()}")


def _ibverbs() -> Line:
    command = "python3 {folder}/ibverbs_check.py {device} {gid} {server}"
    return Line(
        "",
        command,
        f"{command} call",
        ("^64 KiB were written$",),
        server_says=("^64 KiB have arrived$",),
        bytes_min=65536,
        setup={"PYTHONPATH": "{folder}/site"},
        ready=_PORT,
        before=lambda folder: _install(_IBVERBS, "ibverbs_check.py", folder),
        called="ibverbs_check.py",
        note=f"PyPI: {_IBVERBS}, which asks plain `dlsym`",
    )


def _mpi4py() -> Line:
    def prepare(folder: Path) -> None:
        write_open_mpi_agent(folder)
        _install(_MPI4PY, "mpi4py_check.py", folder)

    setup = {
        "UCX_TLS": "rc_verbs,ud_verbs:aux",
        "UCX_NET_DEVICES": "{device}:1",
        "PYTHONPATH": "{folder}/site",
        "MPI4PY_MPIABI": "openmpi",
    }
    line = open_mpi(TWO_HOSTS, "--mca pml ucx", program="python3 {folder}/mpi4py_check.py", before=prepare, **setup)
    return replace(line, called="mpi4py_check.py", note=f"PyPI: {_MPI4PY}")


REGISTRIES = [_ibverbs(), _mpi4py()]
