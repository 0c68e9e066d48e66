"""What speaks through rdma-core's rsockets, which run on airdma: its own programs, and programs for
TCP under librspreload.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from programs.line import SPINS, Line

_RDMACM = "rdmacm-utils"
_SOME = "-C 50 -S 20000"
_DONE = (r"^custom +19k +50 +1 +1\.9m",)
_PRELOADED = {"LD_PRELOAD": "{rspreload}"}
_BEFORE = "librspreload stands before librdmacm, and `airdma run` puts airdma before both"
_COPIED = 100_000_000
"""Bytes."""


def _stream(program: str, mode: str, *, client_mode: str = "") -> Line:
    return Line(
        _RDMACM,
        f"{program} {_SOME} {mode}",
        f"{program} -s {{server}} {_SOME} {client_mode or mode}",
        _DONE,
        server_says=_DONE,
        ready=SPINS,
        bytes_min=2_000_000,
    )


def _udpong(mode: str, *, server: str = "{server}", client: str = "{client}") -> Line:
    return Line(
        _RDMACM,
        f"udpong -b {server} -C 100 -S 900 {mode}",
        f"udpong -b {client} -s {server} -C 100 -S 900 {mode}",
        (r"^custom +900 +200 ",),
        ready="udp 7174",
        stays=True,
        bytes_min=90_000,
    )


def _compile_echo(folder: Path) -> None:
    source = Path(__file__).with_name("echo.c")
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "echo"), str(source)], check=True)


def _make_file(folder: Path) -> None:
    (folder / "sent").write_bytes(os.urandom(_COPIED))


def _compare_file(folder: Path) -> list[str]:
    sent, received = folder / "sent", folder / "received"
    same = received.exists() and sent.read_bytes() == received.read_bytes()
    sent.unlink()
    received.unlink(missing_ok=True)
    return [] if same else ["the copy differs"]


SOCKETS = [
    *(_stream("rstream", mode) for mode in ("-T v", "-T b -T v", "-T n -T v", "-T r -T v")),
    _stream("rstream", "-T a -T v", client_mode="-T v"),
    Line(
        _RDMACM,
        "rstream -C 20 -S 1000000 -T v",
        "rstream -s {server} -C 20 -S 1000000 -T v",
        (r"^custom +976k +20 ",),
        ready=SPINS,
        bytes_min=40_000_000,
    ),
    Line(
        _RDMACM,
        f"rstream -p 7500 -k 5 -B 65536 -i 64 -I 10 {_SOME}",
        f"rstream -s {{server}} -p 7500 -k 5 -B 65536 -i 64 -I 10 {_SOME}",
        ("Keepalive: ON", r"^custom +19k +50 +10 +19m"),
        ready=SPINS,
        bytes_min=20_000_000,
    ),
    Line(
        _RDMACM,
        f"rstream -f ip -b {{server}} {_SOME} -T v",
        f"rstream -f ip -s {{server}} {_SOME} -T v",
        _DONE,
        ready=SPINS,
    ),
    Line(
        _RDMACM,
        f"rstream -f ipv6 -b {{server6}} {_SOME} -T v",
        f"rstream -f ipv6 -s {{server6}} {_SOME} -T v",
        _DONE,
        ready=SPINS,
    ),
    Line(
        _RDMACM,
        f"rstream {_SOME} -T s -T v",
        f"rstream -s {{server}} {_SOME} -T s -T v",
        _DONE,
        server_says=_DONE,
        ready=SPINS,
        setup=_PRELOADED,
        bytes_min=2_000_000,
        note=_BEFORE,
    ),
    Line(
        _RDMACM,
        f"rstream {_SOME} -T f -T v",
        f"rstream -s {{server}} {_SOME} -T f -T v",
        _DONE,
        ready=7471,
        setup={**_PRELOADED, "RDMAV_FORK_SAFE": "1"},
        stays=True,
        bytes_min=2_000_000,
        note=_BEFORE,
    ),
    Line(
        "",
        "{folder}/echo serve {server}",
        "{folder}/echo call {server}",
        ("^4000000 bytes came back",),
        setup=_PRELOADED,
        bytes_min=8_000_000,
        before=_compile_echo,
        note=f"`echo.c`, a plain TCP program; {_BEFORE}",
    ),
    *(_stream("riostream", mode) for mode in ("-T v", "-T a -T v", "-T b -T v", "-T n -T v")),
    Line(
        _RDMACM,
        "rcopy",
        "rcopy {folder}/sent {server}:{folder}/received",
        (f"^{_COPIED} bytes in",),
        ready=SPINS,
        stays=True,
        bytes_min=_COPIED,
        before=_make_file,
        after=_compare_file,
        note="100 MB, compared",
    ),
    *(_udpong(f"-T e{mode}") for mode in ("", " -T a", " -T b", " -T n")),
    _udpong("-T e", server="{server6}", client="{client6}"),
]
