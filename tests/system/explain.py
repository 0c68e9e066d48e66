"""`airdma run --explain`: what it says of programs, of hosts and of the port, against what they
then do.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import version_nodes
from airdma_lab import build, devices
from airdma_lab.lab import Host, Lab
from case import NotRunError, Tally

ROCE_PORT = 4791
HOLD = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", {ROCE_PORT}))
time.sleep(60)
"""
STATIC = "int main(void) { return 0; }\n"
LISTS = """#include <infiniband/verbs.h>
int main(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (list)
        ibv_free_device_list(list);
    return count < 1;
}
"""
WRAPS = """#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
struct ibv_device **ibv_get_device_list(int *count)
{
    struct ibv_device **(*next)(int *) = dlsym(RTLD_NEXT, "ibv_get_device_list");
    fputs("wrapped\\n", stderr);
    return next(count);
}
"""
NO_PROC = "mount -t tmpfs none /proc"
NO_HOME = (
    "mount -t tmpfs -o ro none /mnt; export HOME=/mnt; unset XDG_STATE_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR AIRDMA_HOME"
)
WORKS, FAILS = "it will work", "it will not work"


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs all of them; `folder` takes what is made."""
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        ("a program that works", lambda: _explains(lab.a, ["rping"], WORKS, _devices(lab.a))),
        ("the port is shared with a process of ours", lambda: _shared(lab.a)),
        ("the port is a stranger's", lambda: _taken(lab.a)),
        ("a static program", lambda: _static(lab, folder)),
        ("a program that changes its user", lambda: _set_id(lab.a, folder)),
        ("a program that is newer than the host's rdma-core", lambda: _newer(lab.a, folder)),
        ("a program that is newer than airdma", lambda: _newest(lab.a, folder)),
        (
            "a wrapper that clears the environment",
            lambda: _unreached(lab.a, ["env", "-i", "rping"], "env takes LD_PRELOAD away"),
        ),
        ("a static program behind a wrapper", lambda: _unreached(lab.a, ["nice", str(folder / "static")], "is static")),
        ("AddressSanitizer", lambda: _sanitized(lab.a, folder, "address", ["verify_asan_link_order=0"])),
        ("ThreadSanitizer", lambda: _sanitized(lab.a, folder, "thread", [])),
        ("a library of the user's that wraps verbs", lambda: _wrapped(lab.a, folder)),
        ("a program with a /run and /tmp of its own", lambda: _apart(lab.a)),
        ("two devices with one address", lambda: _two_owners(lab.a)),
        ("no more descriptors", lambda: _says(lab.a, 'ulimit -n 5; exec "$0" run -- ibv_devinfo', "LimitNOFILE=1024")),
        (
            "no /proc",
            lambda: _says(lab.a, f'{NO_PROC}; exec "$0" run -- true', "`mount -t proc proc /proc`, or set AIRDMA_LIB"),
        ),
        ("no home", lambda: _says(lab.a, f'{NO_HOME}; exec "$0" send /etc/hostname 127.0.0.1', "AIRDMA_HOME=FOLDER")),
        ("no place for jobs", lambda: _says(lab.a, f'{NO_HOME}; exec "$0" serve', "--state DIR")),
        ("rsockets and the drop-in", lambda: _explains(lab.a, ["--dropin", "rstream"], FAILS, ["install librdmacm1"])),
    ]
    for name, test in tests:
        tally.attempt(f"airdma run --explain: {name}", test)


def _devices(host: Host) -> list[str]:
    return [f"{devices.DEVICE} up {host.ipv4}", f"UDP {ROCE_PORT} is free at {host.ipv4}", "libairdma.so"]


def _explains(
    host: Host, argv: list[str], verdict: str, wanted: list[str], prefix: list[str] | None = None
) -> list[str]:
    outcome = host.run([*(prefix or []), str(build.binary()), "run", "--explain", *argv])
    complaints = [
        f"it does not say {words!r}" for words in [f"result    {verdict}", *wanted] if words not in outcome.stdout
    ]
    complaints += [] if outcome.returncode == (verdict != WORKS) else ["wrong exit status"]
    return [*complaints, outcome.explain()] if complaints else []


def _shared(host: Host) -> list[str]:
    server = host.start(build.with_airdma(["rping", "-s", "-a", host.ipv4]))
    try:
        if not server.wait_listening(ROCE_PORT, "udp", 10):
            return ["rping does not listen"]
        wanted = [f"UDP {ROCE_PORT} at {host.ipv4}: shared with rping (process {server.pid})"]
        return _explains(host, ["ibv_devices"], WORKS, wanted)
    finally:
        host.forget(server)


def _taken(host: Host) -> list[str]:
    stranger = host.start(["python3", "-c", HOLD])
    try:
        if not stranger.wait_listening(ROCE_PORT, "udp", 10):
            return ["python does not listen"]
        return _explains(host, ["rping"], FAILS, [f"(process {stranger.pid}) has it; end it"])
    finally:
        host.forget(stranger)


def _static(lab: Lab, folder: Path) -> list[str]:
    source, program = folder / "static.c", folder / "static"
    source.write_text(STATIC, encoding="ascii")
    compiled = lab.a.run(["cc", "-static", "-o", str(program), str(source)])
    return _explains(lab.a, [str(program)], FAILS, ["is static"]) if compiled.ok else [compiled.explain()]


def _unreached(host: Host, argv: list[str], words: str) -> list[str]:
    """`airdma run` itself says in one line what `--explain` says."""
    complaints = _explains(host, argv, FAILS, [words])
    said = host.run(build.with_airdma([*argv, "--version"])).stderr.splitlines()
    told = [line for line in said if words in line]
    return [*complaints, *([] if len(told) == 1 else [f"airdma run says: {said}"])]


def _says(host: Host, script: str, words: str) -> list[str]:
    """What is said names the way out."""
    outcome = host.run(["unshare", "--mount", "sh", "-c", script, str(build.binary())])
    return [] if not outcome.ok and words in outcome.stderr else [outcome.explain()]


def _sanitized(host: Host, folder: Path, sanitizer: str, words: list[str]) -> list[str]:
    """AddressSanitizer's runtime ends a program in which another library comes first, unless an
    option keeps it from that.
    """
    source, program = folder / "sanitized.c", folder / "sanitized"
    source.write_text(LISTS, encoding="ascii")
    compiled = host.run(["cc", f"-fsanitize={sanitizer}", "-o", str(program), str(source), "-libverbs"])
    if not compiled.ok:
        return [compiled.explain()]
    complaints = _explains(host, [str(program)], WORKS, words)
    outcome = host.run(build.with_airdma([str(program)]))
    return [*complaints, *([] if outcome.ok else [outcome.explain()])]


def _wrapped(host: Host, folder: Path) -> list[str]:
    """It sees no call behind airdma."""
    source, library = folder / "wrapper.c", folder / "wrapper.so"
    source.write_text(WRAPS, encoding="ascii")
    compiled = host.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)])
    if not compiled.ok:
        return [compiled.explain()]
    outcome = host.run(["env", f"LD_PRELOAD={library}", *build.with_airdma(["ibv_devices"])])
    found = outcome.ok and outcome.stderr == "wrapped\n" and devices.DEVICE in outcome.stdout
    return [] if found else [outcome.explain()]


OWN_DIRECTORIES = """\
root=$1
shift
mount -t tmpfs none /run
mkdir /run/root
mount --rbind "$root" /run/root
mount -t tmpfs none /tmp
mkdir -p "$root"
mount --rbind /run/root "$root"
exec "$@"
"""
"""Runs a command that has a /run and a /tmp of its own, and the checkout where it was, be it in
/tmp.
"""


def _apart(host: Host) -> list[str]:
    """As a service with PrivateTmp=, or a container in the network of the host."""
    own = ["unshare", "--mount", "sh", "-ec", OWN_DIRECTORIES, "sh", str(build.ROOT)]
    server = host.start([*own, *build.with_airdma(["rping", "-s", "-a", host.ipv4])])
    try:
        if not server.wait_listening(ROCE_PORT, "udp", 10):
            return ["rping does not listen"]
        words = "has a /run or /tmp of its own"
        told = [line for line in host.run(build.with_airdma(["true"])).stderr.splitlines() if words in line]
        complaints = [] if len(told) == 1 else [f"airdma run says: {told}"]
        return [*complaints, *_explains(host, ["rping"], FAILS, [words, "install -d -m 700 /run/airdma-"])]
    finally:
        host.forget(server)


def _two_owners(host: Host) -> list[str]:
    for argv in (
        ["link", "add", "twin", "type", "veth"],
        ["address", "add", f"{host.ipv4}/24", "dev", "twin"],
        ["link", "set", "twin", "up"],
    ):
        outcome = host.run(["ip", *argv])
        if not outcome.ok:
            return [outcome.explain()]
    try:
        complaints = _explains(host, ["rping"], WORKS, ["have one address"])
        server = host.start(
            build.with_airdma(["ibv_rc_pingpong", "-d", devices.DEVICE, "-g", str(devices.gid_index(host, 4))])
        )
        try:
            if not server.wait_listening(ROCE_PORT, "udp", 10):
                return ["ibv_rc_pingpong does not listen"]
            return [*complaints, *_explains(host, ["rping"], FAILS, ["have one address", "give "])]
        finally:
            host.forget(server)
    finally:
        host.run(["ip", "link", "del", "twin"])


def _set_id(host: Host, folder: Path) -> list[str]:
    """Another user than root explains a program of root's. Only real root can change to another
    user.
    """
    nobody = ["setpriv", "--reuid", "65534", "--clear-groups"]
    if not host.run([*nobody, "true"]).ok:
        msg = "a second user needs root outside of a user namespace"
        raise NotRunError(msg)
    shell = folder / "shell"
    shutil.copy("/bin/sh", shell)
    shell.chmod(0o4755)
    folder.chmod(0o755)
    for argv in ([str(build.binary()), "--version"], [str(shell), "-c", ":"]):
        if not host.run([*nobody, *argv]).ok:
            msg = f"a second user cannot run {argv[0]}"
            raise NotRunError(msg)
    if "nosuid" in host.run(["findmnt", "--noheadings", "--output", "OPTIONS", "--target", str(shell)]).stdout:
        msg = f"setuid has no effect in {folder}"
        raise NotRunError(msg)
    return _explains(host, [str(shell)], FAILS, ["changes its user"], nobody)


def _newer(host: Host, folder: Path) -> list[str]:
    """Whatever the host has, it starts: on the drop-in directory where the host's libraries lack
    its version nodes.
    """
    names = version_nodes.symbols()["IBVERBS_1.18"]
    place = folder / "newer"
    place.mkdir()
    version_nodes.stand_in(place, "libibverbs.so.1", {"IBVERBS_1.18": names})
    program = version_nodes.program(place, place, "IBVERBS_1.18", names)
    outcome = host.run(build.with_airdma([program]))
    started = outcome.ok and "airdma" not in outcome.stderr and len(outcome.stdout.splitlines()) == len(names)
    wanted = [f"{len(names)} of libibverbs.so.1, up to IBVERBS_1.18"]
    return _explains(host, [program], WORKS, wanted) if started else [outcome.explain()]


def _newest(host: Host, folder: Path) -> list[str]:
    """It starts where the host's library is as new, and is told which call will be refused;
    elsewhere the loader names the node.
    """
    place = folder / "newest"
    place.mkdir()
    node, name = "IBVERBS_1.99", "ibv_query_future"
    version_nodes.stand_in(place, "libibverbs.so.1", {node: [name]})
    program = version_nodes.program(place, place, node, [name])
    told = f"{name} ({node})"
    there = ["env", f"LD_LIBRARY_PATH={place}"]
    complaints = [
        *_explains(host, [program], FAILS, [f"{node}, which this host's libibverbs.so.1 does not have", told]),
        *_explains(host, [program], WORKS, [f"this airdma does not have {told}"], there),
    ]
    outcome = host.run([*there, *build.with_airdma([program])])
    warned = outcome.ok and f"this airdma does not have {told}" in outcome.stderr
    return complaints if warned else [*complaints, outcome.explain()]
