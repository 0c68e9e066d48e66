"""What is in the package, and whether it works from where it was unpacked."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import stage
from said import Failure, need, said

PRESENT = (
    "usr/bin/airdma",
    "usr/lib/airdma/libairdma.so",
    "usr/lib/airdma/libairdma_sockets.so",
    "usr/lib/airdma/dropin/libibverbs.so.1",
    "usr/lib/airdma/dropin/librdmacm.so.1",
    "usr/include/airdma.h",
    "usr/include/airdma/verbs_record.h",
    "usr/lib/systemd/system/airdma-serve.service",
    "usr/lib/systemd/user/airdma-serve.service",
    "usr/lib/sysusers.d/airdma.conf",
    "usr/lib/sysctl.d/10-airdma.conf",
    "usr/share/man/man1/airdma.1.gz",
    "usr/share/man/man1/airdma-run.1.gz",
    "usr/share/man/man3/libairdma.3.gz",
    "usr/share/man/man3/airdma_record.3.gz",
    "usr/share/man/man7/airdma-env.7.gz",
    "usr/share/bash-completion/completions/airdma",
    "usr/share/zsh/vendor-completions/_airdma",
    "usr/share/fish/vendor_completions.d/airdma.fish",
    "usr/share/doc/airdma/copyright",
    "usr/share/doc/airdma/THIRD-PARTY.gz",
)
MIB_MAX = 40
LOOPBACK = {"AIRDMA_LOOPBACK": "1"}


def names(package: Path, root: Path) -> str:
    """The package has its files, owned by root, and it unpacks."""
    listed = said(["dpkg-deb", "--contents", package]).splitlines()
    strangers = [line for line in listed if " root/root " not in line or "s" in line[:10]]
    if strangers:
        raise Failure("not root's, or setuid:\n" + "\n".join(strangers))
    said(["dpkg-deb", "--extract", package, root])
    missing = [name for name in PRESENT if not (root / name).exists()]
    if missing:
        raise Failure(f"absent: {', '.join(missing)}")
    if package.stat().st_size > MIB_MAX << 20:
        raise Failure(f"{package.stat().st_size} bytes, at most {MIB_MAX} MiB are expected")
    return ""


def policy(package: Path, _root: Path) -> str:
    """Lintian has nothing to say."""
    need("lintian", "lintian")
    # It refuses to run as root, if it is not told that this is meant.
    found = said(["lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", package])
    return f" {found.strip()}" if found.strip() else ""


def verbs(_package: Path, root: Path) -> str:
    """An unmodified program runs from the unpacked tree, by the preload and by the drop-in."""
    need("ibv_rc_pingpong", "ibverbs-utils")
    airdma = str(root / "usr/bin/airdma")
    for option in ([], ["--dropin"]):
        run = [airdma, "run", *option, "--"]
        pingpong = [*run, "ibv_rc_pingpong", "-d", "airdma_lo", "-g", "0", "-n", "200", "-p", "18519"]
        environment = {**os.environ, **LOOPBACK}
        with subprocess.Popen(pingpong, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as server:
            try:
                until_listening(18519, server)
                output = said([*pingpong, "127.0.0.1"], LOOPBACK)
                if "200 iters" not in output:
                    raise Failure(output)
                server.wait(timeout=20)
            finally:
                server.kill()
    explained = said([airdma, "sockets", "--explain", "--", "true"])
    if str(root / "usr/lib/airdma/libairdma_sockets.so") not in os.path.realpath(explained) + explained:
        raise Failure(f"`airdma sockets` does not use the library of the package:\n{explained}")
    return ""


def until_listening(port: int, server: subprocess.Popen[bytes]) -> None:
    """Waits for a TCP listener, which a connection would take the place of a client from."""
    deadline = time.monotonic() + 20
    while server.poll() is None and time.monotonic() < deadline:
        tables = [Path(f"/proc/net/{table}") for table in ("tcp", "tcp6")]
        lines = [line for table in tables if table.exists() for line in table.read_text().splitlines()]
        if any(f":{port:04X} " in line and " 0A " in line for line in lines):
            return
        time.sleep(0.05)
    raise Failure(f"the server does not listen at port {port}: {server.poll()}")


def c_library(_package: Path, root: Path) -> str:
    """A C program is built with the flags of pkg-config, and runs."""
    need("pkg-config", "pkgconf")
    need("cc", "gcc")
    libraries = root / "usr" / stage.layout("debian").libraries
    search = {"PKG_CONFIG_PATH": str(libraries / "pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    flags = said(["pkg-config", "--cflags", "--libs", "airdma"], search).split()
    flags += [f"-L{libraries}", f"-I{root / 'usr/include'}"]
    program = root.parent / "hello"
    said(["cc", "-o", program, root / "usr/share/doc/airdma/examples/hello.c", *flags])
    needed = said(["objdump", "-p", program])
    if "libairdma_north.so.0" not in needed:
        raise Failure(f"it does not name the ABI that it needs:\n{needed}")
    found = {**os.environ, "LD_LIBRARY_PATH": str(libraries)}
    listen = [str(program), "listen", "127.0.0.1"]
    with subprocess.Popen(listen, env=found, stdout=subprocess.DEVNULL) as listener:
        try:
            for _ in range(40):
                greeted = subprocess.run(
                    [program, "greet", "127.0.0.1:7471"], env=found, capture_output=True, check=False
                )
                if greeted.returncode == 0:
                    break
                time.sleep(0.1)
            else:
                raise Failure(f"hello: {greeted.stderr.decode()}")
            listener.wait(timeout=20)
        finally:
            listener.kill()
    return ""


def manuals(_package: Path, root: Path) -> str:
    """Manual pages are shown without a warning; each command has one, and `help` none."""
    need("man", "man-db")
    pages = sorted((root / "usr/share/man").rglob("*.gz"))
    for page in pages:
        shown = said(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page])
        warnings = [line for line in shown.splitlines() if "warning" in line and page.name in line]
        if warnings:
            raise Failure("\n".join(warnings))
        said(["lexgrog", page])
    text = gzip.decompress((root / "usr/share/man/man1/airdma.1.gz").read_bytes()).decode()
    for command in commands(root):
        if f"airdma\\-{command}(1)" not in text or not (root / f"usr/share/man/man1/airdma-{command}.1.gz").exists():
            raise Failure(f"no page of `airdma {command}`")
    if any("help" in page.name for page in pages):
        raise Failure("pages of `help`")
    return f" {len(pages)} pages"


def commands(root: Path) -> list[str]:
    """The commands of `airdma --help`."""
    listed = said([root / "usr/bin/airdma", "--help"]).partition("Commands:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    return [command for command in found if command != "help"]


def completions(_package: Path, root: Path) -> str:
    """Each shell takes its completions, and bash completes a command and an option."""
    script = root / "usr/share/bash-completion/completions/airdma"
    for line, word, expected in (("airdma dev", "dev", "devices"), ("airdma run --exp", "--exp", "--explain")):
        words = line.split()
        before = words[-2]
        ask = (
            f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; "
            f'_airdma airdma "{word}" "{before}"; echo "${{COMPREPLY[@]}}"'
        )
        completed = said(["bash", "--norc", "-c", ask]).split()
        if completed != [expected]:
            raise Failure(f"bash completes `{line}` as {completed}")
    need("zsh", "zsh")
    said(["zsh", "-n", root / "usr/share/zsh/vendor-completions/_airdma"])
    need("fish", "fish")
    said(["fish", "--no-execute", root / "usr/share/fish/vendor_completions.d/airdma.fish"])
    return ""


def setup(package: Path, _root: Path) -> str:
    """The script for CI installs nothing from the network, or of another checksum, as root."""
    script = stage.SOURCE / "packaging/action/setup.sh"
    for words, complaint in (
        (["https://192.0.2.1/airdma.deb"], "give its SHA-256"),
        ([package, "0" * 64], "it is not installed"),
    ):
        printed = said(["bash", script, *words], status=2)
        if complaint not in printed:
            raise Failure(printed)
    return ""


READ_ONLY = """
set -eu
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
ip link set lo up
if touch "$1/usr/file" 2>/dev/null; then exit 9; fi
airdma=$1/usr/bin/airdma
"$airdma" devices
"$airdma" run -- ibv_rc_pingpong -d airdma_lo -g 0 -n 100 > /dev/null &
for _ in $(seq 100); do
    grep -q ":4853 .* 0A " /proc/net/tcp /proc/net/tcp6 && break
    sleep 0.05
done
"$airdma" run -- ibv_rc_pingpong -d airdma_lo -g 0 -n 100 127.0.0.1
wait $!
if "$airdma" capture "$1/usr/file" --seconds 1 2> /dev/null; then exit 8; fi
"""


def read_only(_package: Path, root: Path) -> str:
    """Nothing is written below a read-only /usr, and what cannot be is refused."""
    need("ibv_rc_pingpong", "ibverbs-utils")
    spaces = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--mount-proc", "--fork"]
    output = said([*spaces, "--kill-child", "sh", "-c", READ_ONLY, "sh", root], LOOPBACK)
    if "100 iters" not in output:
        raise Failure(output)
    return ""


CHECKS: tuple[Callable[[Path, Path], str], ...] = (
    names,
    policy,
    verbs,
    read_only,
    c_library,
    manuals,
    completions,
    setup,
)
