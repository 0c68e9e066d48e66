"""What it takes to make network namespaces: root, or a user namespace of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_MARKER = "AIRDMA_LAB_UNSHARED"
_UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount"]


def enter() -> None:
    """Makes `ip netns` usable: returns at once for root, otherwise starts this script again in a
    user namespace.

    `ip netns` keeps its names in /run/netns, which only root may write. In the new mount namespace
    a tmpfs over /run is ours alone, so the very same commands work without root, and everything
    vanishes with the last process.
    """
    if os.environ.pop(_MARKER, None):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
        Path("/run/netns").mkdir()
        return
    if os.geteuid() == 0:
        return
    reason = refusal()
    if reason:
        print(reason, file=sys.stderr)
        sys.exit(2)
    os.environ[_MARKER] = "1"
    sys.stdout.flush()
    os.execvp(_UNSHARE[0], [*_UNSHARE, "--", sys.executable, *sys.orig_argv[1:]])


def refusal() -> str:
    """Why `enter` would fail, and what to do about it; "" if it would not."""
    if os.geteuid() == 0 or _MARKER in os.environ:
        return ""
    # Mounting is part of the probe: Ubuntu's AppArmor lets the namespace be made and then refuses
    # everything in it.
    probe = subprocess.run(
        [*_UNSHARE, "--", "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True, check=False
    )
    if probe.returncode == 0:
        return ""
    return (
        f"This needs root or unprivileged user namespaces, and has neither ({probe.stderr.strip()}).\n"
        "Run it with sudo, or allow them: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), "
        "sysctl -w kernel.unprivileged_userns_clone=1 (older Debian)."
    )
