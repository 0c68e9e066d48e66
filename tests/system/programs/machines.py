"""Virtual machines and storage: what moves memory and blocks of whole hosts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from programs.line import RDMA, Line

HERE = Path(__file__).resolve().parent
_TARGET = "iqn.2026-11.test.airdma:disk"
_INITIATOR = "iqn.2026-11.test.airdma:initiator"


def _prepare_migration(folder: Path) -> None:
    shutil.copy(HERE / "migrate.py", folder)
    (folder / "memory").write_bytes(os.urandom(8 << 20))


def _prepare_target(folder: Path) -> None:
    shutil.copy(HERE / "target.py", folder)


def _migration(capabilities: str, bytes_min: int) -> Line:
    """A guest of 64 MiB moves while it runs; 8 MiB of its memory are compared."""
    script = "{folder}/migrate.py {folder}"
    return Line(
        "qemu-system-x86",
        f"python3 {script} receive {{server}}",
        f"python3 {script} send {{server}} {capabilities}".strip(),
        ("^the migration has completed$",),
        ("^the memory is the same$",),
        bytes_min=bytes_min,
        before=_prepare_migration,
        called="qemu-system-x86_64",
        note="`qemu-system-x86_64 -incoming rdma:SERVER:4444`, and `migrate rdma:SERVER:4444` by QMP",
    )


def _iscsi(command: str, says: tuple[str, ...], bytes_min: int) -> Line:
    url = f"iser://{{server}}:3260/{_TARGET}/1"
    return Line(
        "libiscsi-bin",
        f"python3 {{folder}}/target.py {{folder}}/disk {_TARGET} {_INITIATOR}",
        f"{command} {url}",
        says,
        bytes_min=bytes_min,
        ready=RDMA,
        stays=True,
        before=_prepare_target,
        note="iSER; the target is tgtd",
    )


def _scsi_tests(*names: str) -> Line:
    """libiscsi's own tests, some of which compare what they have written."""
    command = f"iscsi-test-cu -i {_INITIATOR} -d -t {','.join(f'SCSI.{name}' for name in names)}"
    return _iscsi(command, (r"asserts +\d+ +\d+ +\d+ +0 ",), 10_000)


MACHINES = [
    _migration("", 8 << 20),
    _migration("rdma-pin-all", 64 << 20),
    _scsi_tests("Read10.Simple", "Write10.Simple", "CompareAndWrite.Simple"),
]
