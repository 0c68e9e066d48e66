"""The machine that a measurement was taken on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path


def describe() -> dict[str, str]:
    """What a reader needs to judge the numbers."""
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text(encoding="ascii"))
    return {
        "cpu": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{int(memory.group(1)) / 1048576:.0f} GiB" if memory else "unknown",
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
    }


def versions() -> dict[str, str]:
    """Versions of the programs compared."""
    return {
        # The program calls itself 6.06 in every release of these years; the package knows better.
        "perftest": _first(["dpkg-query", "-W", "perftest"], r"perftest\s+(\S+)"),
        "iperf3": _first(["iperf3", "--version"], r"iperf (\S+)"),
        "sockperf": _first(["sockperf", "--version"], r"version (\S+)"),
        "rustc": _first(["rustc", "--version"], r"rustc (\S+)"),
    }


def congestion_controls() -> list[str]:
    """TCP algorithms that this kernel has loaded."""
    return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()


def _cpu() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    virtual = ", virtual machine" if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE) else ""
    return (name.group(1) if name else platform.machine()) + virtual


def _first(command: list[str], pattern: str) -> str:
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "not installed"
    found = re.search(pattern, result.stdout + result.stderr)
    return found.group(1).rstrip("=") if found else "unknown"
