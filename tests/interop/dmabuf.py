"""Memory of other devices, which few kernels of test machines have: `ibv_reg_dmabuf_mr` with
/dev/udmabuf and /dev/dma_heap of the guest's.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from airdma_lab import build
from guest import HOST_FOLDER, GuestError
from stand import Row

if TYPE_CHECKING:
    from stand import Stand

NAME = "memory of a dmabuf"
_SOURCE = build.ROOT / "crates/verbs/tests/c/dmabuf.c"
_TIMEOUT_S = 120.0


def work(kernel: str) -> list[tuple[str, Callable[[Stand], None]]]:
    """For kernels that have it."""
    return [(NAME, _run)] if kernel == "6.12" else []


def _run(stand: Stand) -> None:
    started = time.monotonic()
    folder = stand.guest.folder / "bin"
    for name in ("airdma", "libairdma.so"):
        shutil.copy(build.binary().with_name(name), folder)
    subprocess.run(["cc", "-O1", "-o", str(folder / "dmabuf"), str(_SOURCE), "-libverbs"], check=True)
    stand.rxe.tear_down()
    run = f"ip link set lo up; AIRDMA_LOOPBACK=1 exec {HOST_FOLDER}/bin/airdma run -- {HOST_FOLDER}/bin/dmabuf"
    try:
        outcome = stand.guest.start_script(f"exec unshare -n bash -c '{run}'").wait(_TIMEOUT_S)
        found = [word for word in ("udmabuf", "heap") if word in outcome.stderr]
        is_well = outcome.ok and outcome.stdout == "ok\n" and len(found) == 2
        complaints = [] if is_well else [outcome.explain()]
    except GuestError as error:
        complaints = [str(error)]
    with suppress(GuestError):
        stand.rxe.set_up()
    stand.record(Row(NAME, bool(complaints), 0, 0, time.monotonic() - started), complaints)
