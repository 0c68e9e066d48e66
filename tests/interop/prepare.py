"""What has to be there before anything can be run, and how to get it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import image
from airdma_lab import build, privileges, requirements

TOOLS = [
    *requirements.LAB_TOOLS,
    *requirements.INTEROP_TOOLS,
    *requirements.PERFTEST_TOOLS,
    *requirements.PINGPONG_TOOLS,
]


class Missing(RuntimeError):
    """Something is not there; the text says how to get it."""


def image_of(kernel: str, has_disks: bool = False) -> image.Image:
    """The guest's image, and everything else that is needed."""
    needed = requirements.missing([*TOOLS, "rping"])
    packages = {requirements.PACKAGES[tool] for tool in needed}
    headers = [header for header in requirements.HEADERS if not Path(header).exists()]
    packages |= {requirements.HEADERS[header] for header in headers}
    if packages:
        install = f"apt-get install --no-install-recommends {' '.join(sorted(packages))}"
        raise Missing(f"{', '.join([*needed, *headers])} missing: {install}")
    if not Path("/dev/net/tun").exists():
        raise Missing("there is no /dev/net/tun, by which the guest's network is connected: modprobe tun")
    if refusal := privileges.refusal():
        raise Missing(refusal)
    build.require()
    try:
        return image.image(kernel, has_disks)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise Missing(f"there is no guest: {error}") from None
