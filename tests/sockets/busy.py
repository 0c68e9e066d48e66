"""A call that sleeps in the kernel when the peer's library answers ends one attempt to open a lane,
and not all.
"""

from __future__ import annotations

import re
from pathlib import Path

from airdma_lab.lab import Lab
from case import Tally
from ends import BOTH

PORT = 5309
START_S = 15.0
TIMEOUT_S = 60.0
_LANES = re.compile(r"(\d+) connections on a lane")

PROGRAM = """\
import socket, sys, threading, time
role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
PAUSE_S, ALONE_S, BUSY_S, OPEN_S = 0.05, 6, 4, 3
serves = role == "serve"
end = socket.create_server((host, port)).accept()[0] if serves else socket.create_connection((host, port))
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def take(count):
    for _ in range(count):
        assert len(end.recv(8)) == 8
def give(count):
    for _ in range(count):
        time.sleep(PAUSE_S)
        end.sendall(b"8 bytes.")
for _ in range(4):
    (take if serves else give)(1)
    (give if serves else take)(1)
if serves:
    give(1)
    take(1)
    # The tenth call: this end asks. The client's read sleeps.
    time.sleep(BUSY_S)
    give(1)
    take(9)
    # The eighteenth: it asks again.
    time.sleep(OPEN_S)
    give(1)
    take(1)
else:
    take(1)
    # By then this end takes its peer for a process without the library: reads sleep in the kernel.
    time.sleep(ALONE_S)
    reader = threading.Thread(target=take, args=(2,))
    reader.start()
    give(1)
    time.sleep(BUSY_S + 0.5)
    give(9)
    reader.join()
    give(1)
end.close()
"""


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs the program at both ends, and counts lanes."""
    tally.attempt("a lane opens after an attempt that found a call asleep", lambda: _test(lab, folder))


def _test(lab: Lab, folder: Path) -> list[str]:
    program = folder / "busy.py"
    program.write_text(PROGRAM, encoding="ascii")
    ends = ["/usr/bin/python3", str(program)], [lab.a.ipv4, str(PORT)]

    def command(role: str, *, server: bool) -> list[str]:
        return BOTH.command([*ends[0], role, *ends[1]], server=server)

    server = lab.a.start(command("serve", server=True))
    try:
        if not server.wait_listening(PORT, "tcp", START_S):
            return [f"the server does not listen: {server.wait(0).explain()}"]
        outcomes = [lab.b.run(command("ask", server=False), timeout_s=TIMEOUT_S), server.wait(TIMEOUT_S)]
    finally:
        lab.a.forget(server)
    lanes = [count for outcome in outcomes for count in _LANES.findall(outcome.stderr)]
    if lanes == ["1", "1"] and all(outcome.ok for outcome in outcomes):
        return []
    return [f"{lanes} connections on a lane", *(outcome.explain() for outcome in outcomes)]
