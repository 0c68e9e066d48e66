#!/usr/bin/env python3
"""Builds everything for 64-bit ARM, and runs the tests of some packages by QEMU's user emulation.

  python3 tests/aarch64.py [--build-only] [--package NAME ...]

Needs Rust's target (`rustup target add aarch64-unknown-linux-gnu`), a compiler and QEMU (Debian:
gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user). The tests run in namespaces of their own,
in which programs for this processor start by themselves (binfmt_misc, Linux 6.7 or newer).

The emulator has the host's order of memory accesses and its page size: what depends on those is
loom's (`make loom`), and a machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "aarch64-unknown-linux-gnu"
COMPILER = "aarch64-linux-gnu-gcc"
PREFIX = "/usr/aarch64-linux-gnu"
PACKAGES = ("wire", "transport", "cm", "shm", "preload", "engine", "verbs")
SECONDS_MAX = 600
"""For the tests of one file."""
MAGIC = r"\x7fELF\x02\x01\x01" + r"\x00" * 9 + r"\x02\x00\xb7\x00"
MASK = r"\xff" * 7 + r"\x00" + r"\xff" * 8 + r"\xfe\xff\xff\xff"
INSIDE = f"""
set -eu
ip link set lo up
mount -t tmpfs none /run
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
printf '%s' ':aarch64:M::{MAGIC}:{MASK}:'"$1"':F' > /proc/sys/fs/binfmt_misc/register
shift
exec "$@"
"""
NOT_EMULATED = {
    "in_one_subnet_each_interface_has_its_own": "attributes of a device by netlink, IP_UNICAST_IF",
    "memory_of_files_is_known_and_what_nobody_can_cut": "/proc/self/maps as the kernel has it",
    "memory_that_is_not_there_or_not_writable_is_not_registered": "MADV_POPULATE_WRITE",
    "a_child_that_no_handler_noticed_is_another_process": "MADV_WIPEONFORK, which answers success",
    "devices_whose_threads_are_refused_are_all_served": "seccomp",
    "a_path_that_is_known_to_be_narrow_is_used_and_counted": "IP_MTU",
    "a_path_too_narrow_for_sealed_packets_alone_is_counted": "IP_MTU",
    "a_forked_child_draws_other_numbers_than_its_parent": "MADV_WIPEONFORK, which answers success",
    "a_place_in_which_others_can_replace_things_is_not_used": "files of another user: the namespace has one",
    "what_another_user_made_first_is_not_used": "files of another user: the namespace has one",
    "sharing::steering::": "SO_ATTACH_REUSEPORT_CBPF, by which processes share an address",
    "clients_of_a_daemon_reach_each_other_and_other_processes": "the same",
    "programs_connect_through_daemons_and_without": "the same",
    "memory::tests::on_demand::": "seccomp, MADV_POPULATE_WRITE, and a fault in a handler's page",
    "nothing_allocates_after_warm_up": "the host's speed: where packets queue up, a burst of another length comes late",
    "engine/tests/processes/main.rs": "SO_ATTACH_REUSEPORT_CBPF, by which processes share an address",
    "engine/tests/cut_files.rs": "SIGBUS behind the end of a file",
    "engine/tests/group_records.rs": "IP_MULTICAST_ALL",
    "engine/tests/multicast.rs": "IP_MULTICAST_ALL",
}
"""What QEMU 7.2 does not emulate, or a namespace of one user lacks, by the test that needs it, or
the file of such tests.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="builds and tests for 64-bit ARM")
    parser.add_argument("--build-only", action="store_true", help="run nothing")
    parser.add_argument("--package", action="append", help=f"instead of {', '.join(PACKAGES)}")
    options = parser.parse_args()
    absent = missing(options.build_only)
    if absent:
        print(f"aarch64: {'; '.join(absent)}", file=sys.stderr)
        return 1
    cargo("build", "--workspace")
    if options.build_only:
        return 0
    programs = tests(options.package or list(PACKAGES))
    failed = [name for name, program in programs if not passes(name, program)]
    print(f"aarch64: {len(programs) - len(failed)} of {len(programs)} files of tests passed")
    for name in failed:
        print(f"  failed: {name}")
    return 1 if failed else 0


def missing(build_only: bool) -> list[str]:
    """What is not there, and how it is had."""
    absent = []
    asked = ["rustc", "--print", "target-libdir", "--target", TARGET]
    libraries = subprocess.run(asked, capture_output=True, text=True, check=False)
    if libraries.returncode != 0 or not Path(libraries.stdout.strip()).is_dir():
        absent.append(f"rustup target add {TARGET}")
    programs = {COMPILER: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross", "qemu-aarch64": "qemu-user"}
    for program, package in programs.items():
        if shutil.which(program) is None and not (build_only and program.startswith("qemu")):
            absent.append(f"apt install {package}")
    return absent


def cargo(*words: str) -> str:
    environment = {
        **os.environ,
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": COMPILER,
        f"CC_{TARGET.replace('-', '_')}": COMPILER,
    }
    command = [os.environ.get("CARGO", "cargo"), *words, "--target", TARGET]
    return subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def tests(packages: list[str]) -> list[tuple[str, Path]]:
    """The programs of the tests, by package and file."""
    chosen = [word for package in packages for word in ("-p", f"airdma-{package}")]
    found = []
    for line in cargo("test", "--no-run", "--message-format=json-render-diagnostics", *chosen).splitlines():
        message = json.loads(line)
        if message.get("executable") and message.get("profile", {}).get("test"):
            crate = Path(message["manifest_path"]).parent
            source = Path(message["target"]["src_path"]).relative_to(crate)
            if crate.name == "verbs" and source.parts[0] == "tests":
                # They build the library and programs in C, for the host.
                continue
            found.append((f"{crate.name}/{source}", Path(message["executable"])))
    return sorted(found)


def passes(name: str, program: Path) -> bool:
    """Runs one program in its crate's folder, as Cargo does, and prints what came of it."""
    crate = ROOT / "crates" / name.partition("/")[0]
    if name in NOT_EMULATED:
        print(f"{name}: skipped, without {NOT_EMULATED[name]}")
        return True
    skipped = [word for test in NOT_EMULATED if "/" not in test for word in ("--skip", test)]
    qemu = shutil.which("qemu-aarch64")
    assert qemu is not None
    spaces = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    spaces += ["--pid", "--mount-proc", "--fork", "--kill-child"]
    with tempfile.TemporaryDirectory() as tools:
        compiler = Path(tools) / "cc"
        # Headers of other packages than the C library are the same for all processors.
        compiler.write_text(f'#!/bin/sh\nexec {COMPILER} -idirafter /usr/include "$@"\n', encoding="utf-8")
        compiler.chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "QEMU_LD_PREFIX": PREFIX,
            "CARGO_MANIFEST_DIR": str(crate),
        }
        command = [*spaces, "sh", "-c", INSIDE, "sh", qemu, str(program), *skipped]
        started = time.monotonic()
        try:
            # Both outputs are one text: a test that fails prints to both.
            done = subprocess.run(
                command,
                cwd=crate,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=SECONDS_MAX,
                check=False,
            )
            output, status = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired as late:
            output, status = (late.stdout or b"").decode(errors="replace"), -1
    counts = re.findall(r"^test result: .*?(\d+) passed", output, re.MULTILINE)
    outcome = "ok" if status == 0 else f"FAILED ({status})"
    print(f"{name}: {outcome}, {counts[0] if counts else 'no'} tests, {time.monotonic() - started:.1f} s", flush=True)
    if status != 0:
        print(output[-4000:])
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
