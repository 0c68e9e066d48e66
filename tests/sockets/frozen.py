"""Both ends under the shim are frozen for a while, as by a debugger, a container's freezer, or a
machine on which nothing gets the processor.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from airdma_lab.lab import Lab
from case import Tally
from ends import BOTH

PORT = 5303
START_S = 15.0
TIMEOUT_S = 30.0
WAITS_S = 0.3
"""Until the client waits for the server's library."""
FROZEN_S = 3
"""Longer than a hand-back waits for the library of a peer that is stopped."""

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

def serve():
    connection, _ = socket.create_server(("", {PORT})).accept()
    talk(connection, False, 3600)

def ask(host, home):
    connection = socket.create_connection((host, {PORT}))
    talk(connection, True, 1)
    open(home + "/warm", "w").close()
    while not os.path.exists(home + "/go"):
        time.sleep(0.01)
    # The connection is handed back before.
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    try:
        talk(connection, True, 0.5)
        print("answered", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)

serve() if sys.argv[1] == "serve" else ask(*sys.argv[2:])
"""


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs a program that is frozen with its peer while a fork waits for the peer's library."""
    tally.attempt(f"both ends are frozen for {FROZEN_S} s during a fork", lambda: _test(lab, folder / "frozen"))


def _test(lab: Lab, home: Path) -> list[str]:
    home.mkdir()
    program = home / "program.py"
    program.write_text(PROGRAM, encoding="ascii")
    argv = [sys.executable, str(program)]
    server = lab.a.start(BOTH.command([*argv, "serve"], server=True))
    client = None
    try:
        if not server.wait_listening(PORT, "tcp", START_S):
            return [f"the server does not listen: {server.wait(0).explain()}"]
        client = lab.b.start(BOTH.command([*argv, "ask", lab.a.ipv4, str(home)], server=False))
        _wait_for(home / "warm")
        os.kill(server.pid, signal.SIGSTOP)
        (home / "go").touch()
        time.sleep(WAITS_S)
        os.kill(client.pid, signal.SIGSTOP)
        time.sleep(FROZEN_S)
        os.kill(client.pid, signal.SIGCONT)
        time.sleep(WAITS_S)
        os.kill(server.pid, signal.SIGCONT)
        outcome = client.wait(TIMEOUT_S)
    finally:
        if client:
            lab.b.forget(client)
        lab.a.forget(server)
    had_a_lane = "1 connections on a lane" in outcome.stderr
    return [] if outcome.stdout == "answered\n" and had_a_lane else [outcome.explain()]


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
