"""The network between two ends under the shim is cut for a while, or for ever."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from airdma_lab.lab import Lab
from case import Tally
from ends import BOTH, PLAIN, Arrangement

PORT = 5302
ROCE_PORT = 4791
START_S = 15.0
TIMEOUT_S = 30.0
CUT_S = 6
"""Longer than other connections of RDMA outlast a silence."""
USER_TIMEOUT_MS = 3000

PROGRAM = f"""\
import errno, os, socket, sys, time

def talk(connection, first, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if first:
            connection.sendall(b"ping")
        if not connection.recv(4):
            return
        if not first:
            connection.sendall(b"pong")
        time.sleep(0.002)

def serve():
    listener = socket.create_server(("", {PORT}))
    connection, _ = listener.accept()
    talk(connection, False, 3600)

def ask(host, home):
    connection = socket.create_connection((host, {PORT}))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, {USER_TIMEOUT_MS})
    talk(connection, True, 1)
    open(home + "/warm", "w").close()
    while not os.path.exists(home + "/cut"):
        time.sleep(0.01)
    begun = time.monotonic()
    try:
        talk(connection, True, 0.5)
        outcome = "answered"
    except OSError as error:
        outcome = errno.errorcode[error.errno]
    took = time.monotonic() - begun
    print(outcome, "after", "seconds" if took > 2 else "no time", flush=True)
    # The end of the process does not wait for the peer.
    os.kill(os.getpid(), 9)

serve() if sys.argv[1] == "serve" else ask(*sys.argv[2:])
"""


class _Runs:
    """Runs of the program with an arrangement of the shim."""

    def __init__(self, lab: Lab, folder: Path, arrangement: Arrangement) -> None:
        self._lab, self._folder, self._arrangement = lab, folder, arrangement

    def cut_off(self) -> str:
        """What the client says when nothing arrives at it any more."""
        return self._run("cut-off", self._lab.b.cut(), None)

    def without_rdma(self) -> list[str]:
        """Nothing is lost while no packet of RDMA arrives at the client for a while."""
        said = self._run("without-rdma", self._lab.b.cut(ROCE_PORT), CUT_S)
        return [] if said.startswith("answered after seconds") else [said]

    def _run(self, name: str, cut: contextlib.AbstractContextManager[None], seconds: float | None) -> str:
        home = self._folder / f"{name}-{self._arrangement.name.replace(' ', '-')}"
        home.mkdir()
        program = home / "program.py"
        program.write_text(PROGRAM, encoding="ascii")
        argv = [sys.executable, str(program)]
        server = self._lab.a.start(self._arrangement.command([*argv, "serve"], server=True))
        client = None
        try:
            if not server.wait_listening(PORT, "tcp", START_S):
                return f"the server does not listen: {server.wait(0).explain()}"
            ask = [*argv, "ask", self._lab.a.ipv4, str(home)]
            client = self._lab.b.start(self._arrangement.command(ask, server=False))
            _wait_for(home / "warm")
            with cut:
                (home / "cut").touch()
                if seconds is None:
                    return client.wait(TIMEOUT_S).stdout
                time.sleep(seconds)
            return client.wait(TIMEOUT_S).stdout
        finally:
            if client:
                self._lab.b.forget(client)
            self._lab.a.forget(server)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs a program that is cut off, and compares with the same program without the shim."""
    plain = _Runs(lab, folder, PLAIN)
    both = _Runs(lab, folder, BOTH)
    tally.attempt("a host that is cut off: the kernel's error in its time", lambda: _same(plain, both))
    tally.attempt(f"RDMA alone is cut off for {CUT_S} s", both.without_rdma)


def _same(plain: _Runs, both: _Runs) -> list[str]:
    expected, here = plain.cut_off(), both.cut_off()
    return [] if here == expected else [f"plain: {expected}", f"here: {here}"]
