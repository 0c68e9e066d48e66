"""The numbers in what measuring programs print, by `airdma lab read`."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from . import build


def read(program: str, output: str) -> Any | None:
    """The result in `output` of perftest, iperf3 or sockperf; None if it has none."""
    command = [str(build.binary()), "lab", "read", program]
    done = subprocess.run(command, input=output, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None
