#!/usr/bin/env python3
"""An iSCSI target over RDMA (iSER): tgtd with a disk of 64 MiB in a file, for one initiator. Ends
on SIGTERM, which tgtd itself ignores while it has a target.

  target.py FILE TARGET INITIATOR
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

START_S = 10.0


def main() -> None:
    disk, target, initiator = Path(sys.argv[1]), *sys.argv[2:]
    with disk.open("wb") as file:
        file.truncate(64 << 20)
    # So that no tgtd of the host is disturbed.
    os.environ["TGT_IPC_SOCKET"] = f"{disk}.socket"
    # iSCSI over TCP is listened for beside the port of iSER.
    tgtd = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "tgtd", "-f", "--iscsi", "portal=127.0.0.1:3261"])
    signal.signal(signal.SIGTERM, lambda *_: tgtd.kill())
    ask("new", "--mode", "target", "-T", target)
    ask("new", "--mode", "logicalunit", "--lun", "1", "-b", str(disk))
    ask("bind", "--mode", "target", "-I", "ALL")
    # tgt 1.0.85 admits no initiator by its address alone.
    ask("bind", "--mode", "target", "-Q", initiator)
    tgtd.wait()


def ask(operation: str, *arguments: str) -> None:
    """Has tgtd do something, which may still be starting."""
    command = ["tgtadm", "--lld", "iser", "--op", operation, "--tid", "1", *arguments]
    deadline = time.monotonic() + START_S
    while (said := subprocess.run(command, capture_output=True, text=True, check=False)).returncode != 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{' '.join(command)}: {said.stderr}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
