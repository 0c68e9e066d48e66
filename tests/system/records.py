"""Write-Records from one host to another leave no faster than the target takes them: of messages of
any length, back to back, nothing is lost, beside a destination that is silent, too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from airdma_lab import build, devices
from airdma_lab.lab import INTERFACE, Lab
from airdma_lab.pair import run_pair
from case import Tally

PORT = 18515
HERE = Path(__file__).resolve().parent
ABSENT = "10.77.0.77"
"""No host of the lab has this address, nor this one of the link."""
ABSENT_LINK_ADDRESS = "02:00:00:00:00:77"


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs all of them; `folder` takes what is compiled."""
    program = str(folder / "verbs_records")
    source = str(HERE / "verbs_records.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-libverbs"], check=True)
    tally.attempt("records arrive whole", lambda: _whole(lab, [program]))
    tally.attempt("records find entries in the usual table", lambda: _whole(lab, [program, "-u"]))
    known = ["neigh", "add", ABSENT, "lladdr", ABSENT_LINK_ADDRESS, "nud", "permanent", "dev", INTERFACE]
    subprocess.run([*lab.a.inside(), "ip", *known], check=True)
    tally.attempt("records arrive whole beside a silent target", lambda: _whole(lab, [program, "-n", ABSENT]))


def _whole(lab: Lab, argv: list[str]) -> list[str]:
    before = devices.counters(lab.b).get("drop_overflow", 0)
    pair = run_pair(
        lab.b, lab.a, build.with_airdma(argv), build.with_airdma([*argv, lab.b.ipv4]), port=PORT, timeout_s=120
    )
    overflow = devices.counters(lab.b).get("drop_overflow", 0) - before
    said = pair.client.stdout if pair.client else ""
    print(said, end="")
    problems = [] if pair.ok else [pair.explain()]
    return problems + ([f"the target's socket lost {overflow} packets"] if overflow else [])
