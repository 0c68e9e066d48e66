"""The package in a fresh Debian system: installed by apt, used between two hosts, removed while
programs run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import deb
import stage
from said import Failure, Skipped, need, said

ARCHIVE = "http://deb.debian.org/debian"
SECONDS_MAX = 30
"""From the package to the result of a program, by the fresh system's own apt."""
LEFT = ("/var/lib/dpkg/", "/var/lib/apt/", "/var/cache/", "/var/log/", "/etc/ld.so.cache", "/run/", "/tmp/")
"""What every package changes."""

INSIDE = """
set -eu
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
COMMANDS
"""
USE = """
started=$(date +%s)
apt-get install -y -qq /airdma.deb >/install.log 2>&1 || { cat /install.log; exit 1; }
airdma link up --plain >/dev/null
airdma link exec B -- airdma run -- ib_write_bw -d airdma_air0 -n 1000 >/server.log 2>&1 &
for try in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.5
    airdma link exec B -- ss -tln | grep -q 18515 && break
done
airdma link exec A -- airdma run -- ib_write_bw -d airdma_air0 -n 1000 10.78.0.2 || { cat /server.log; exit 1; }
wait $!
echo "seconds $(($(date +%s) - started))"
airdma link exec B -- airdma run -- ib_write_bw -d airdma_air0 -D 20 >/server.log 2>&1 &
server=$!
for try in 1 2 3 4 5 6 7 8 9 10; do
    sleep 0.5
    airdma link exec B -- ss -tln | grep -q 18515 && break
done
airdma link exec A -- airdma run -- ib_write_bw -d airdma_air0 -D 20 10.78.0.2 >/client.log 2>&1 &
client=$!
sleep 2
apt-get purge -y -qq airdma >/remove.log 2>&1 || { cat /remove.log; exit 1; }
kill -0 $client || { cat /client.log /server.log; echo "the program did not outlive the removal"; exit 1; }
wait $client || { cat /client.log; exit 1; }
wait $server || { cat /server.log; exit 1; }
echo "programs ended in order"
"""


ACTION = stage.SOURCE / "packaging/action"
STEPS = """
ip link set lo up
started=$(date +%s)
export GITHUB_ENV=/github-env GITHUB_ACTION_PATH=/action PACKAGE=airdma.deb
export SHA256=$(sha256sum </airdma.deb | cut -d ' ' -f 1)
cat >/setup <<'STEP'
{run}
STEP
bash -e /setup
cat >/step <<'STEP'
ibv_devices | grep airdma_lo
ib_write_bw -d airdma_lo -n 500 >/server.log & sleep 1
ib_write_bw -d airdma_lo -n 500 127.0.0.1
wait $!
STEP
env $(cat /github-env) {shell} /step
echo "seconds $(($(date +%s) - started))"
# A package that is not there ends the step, and says so.
if PACKAGE=/no.deb bash -e /setup 2>/refused; then exit 1; fi
grep -q '/no.deb is not a file' /refused
"""


def check(package: Path, release: str) -> str:
    """Installs the package with apt, runs perftest between two hosts, and removes it."""
    need("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        raise Skipped("debootstrap and chroot need root")
    root = deb.OUTPUT / f"root-{release}"
    remove(root)
    try:
        prepare(root, release)
        shutil.copy(package, root / "airdma.deb")
        before = listing(root)
        output = inside(root, USE, own_network=True)
        complaints = judge(output, before, listing(root))
        if complaints:
            raise Failure("\n".join([*complaints, output]))
        seconds = re.findall(r"^seconds (\d+)$", output, re.MULTILINE)
        return f" {seconds[0]} s from the package to the result of ib_write_bw"
    finally:
        remove(root)


def action(package: Path, release: str) -> str:
    """Runs what packaging/action runs on a runner, and then a step as its `shell` does."""
    need("debootstrap", "debootstrap")
    if os.geteuid() != 0:
        raise Skipped("debootstrap and chroot need root")
    text = (ACTION / "action.yml").read_text(encoding="utf-8")
    runs = re.findall(r"^ +run: '(.*)'$", text, re.MULTILINE)
    shells = re.findall(r"shell: (airdma .*) \{0\}$", text, re.MULTILINE)
    if len(runs) != 1 or len(shells) != 1:
        raise Failure(f"action.yml has other steps than the test knows: {runs}, {shells}")
    root = deb.OUTPUT / f"action-{release}"
    remove(root)
    try:
        prepare(root, release)
        shutil.copy(package, root / "airdma.deb")
        shutil.copytree(ACTION, root / "action")
        output = inside(root, STEPS.format(run=runs[0], shell=shells[0]), own_network=True)
        seconds = re.findall(r"^seconds (\d+)$", output, re.MULTILINE)
        if not seconds:
            raise Failure(output)
        return f" {seconds[0]} s with a step of perftest"
    finally:
        remove(root)


def prepare(root: Path, release: str) -> None:
    """A system with perftest, from a kept archive of packages if there is one."""
    kept = deb.OUTPUT / f"{release}.tar"
    if kept.exists():
        root.mkdir(parents=True)
        said(["tar", "-C", root, "-xpf", kept], timeout_s=300)
        return
    variant = ["--variant=minbase", "--include=iproute2,ca-certificates"]
    said(["debootstrap", *variant, release, root, ARCHIVE], timeout_s=900)
    inside(root, "apt-get install -y -qq --no-install-recommends perftest ibverbs-utils", own_network=False)
    said(["tar", "-C", root, "-cf", kept, "."], timeout_s=300)


def inside(root: Path, commands: str, own_network: bool) -> str:
    """Runs a script as root of the system, in namespaces that end with it."""
    script = root / "script"
    script.write_text(INSIDE.replace("COMMANDS", commands), encoding="utf-8")
    spaces = ["--mount", "--pid", "--ipc", "--fork", "--kill-child", *(["--net"] if own_network else [])]
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    return said(["unshare", *spaces, "chroot", root, "/bin/sh", "/script"], timeout_s=600)


def judge(output: str, before: set[str], after: set[str]) -> list[str]:
    """What is wrong, of the output of `USE` and the files before and after."""
    complaints = []
    seconds = re.findall(r"^seconds (\d+)$", output, re.MULTILINE)
    if not seconds or int(seconds[0]) > SECONDS_MAX:
        complaints.append(f"{seconds} seconds, at most {SECONDS_MAX} are expected")
    if "programs ended in order" not in output:
        complaints.append("programs did not outlive the removal of the package")
    left = sorted(name for name in after - before if not name.startswith(LEFT))
    if left:
        complaints.append(f"left behind: {', '.join(left)}")
    return complaints


def listing(root: Path) -> set[str]:
    """All files of a system, but those that the test itself puts there."""
    own = {"/script", "/airdma.deb", "/install.log", "/remove.log", "/server.log", "/client.log"}
    found = said(["find", root, "-xdev", "-printf", "/%P\\n"]).splitlines()
    return set(found) - own


def remove(root: Path) -> None:
    if root.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)
