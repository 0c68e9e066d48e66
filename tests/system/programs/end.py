"""One end of a line: a machine, and the RDMA device that programs find there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from airdma_lab import build, devices
from airdma_lab.lab import Host
from airdma_lab.program import Outcome, Program

from programs.line import Line


class Running(Protocol):
    """A program that was started."""

    def wait(self, timeout_s: float) -> Outcome:
        """Waits for the end, kills at the deadline, and returns the outcome."""

    def stop(self) -> Outcome:
        """Asks the program to end; one that obeys has ended well."""

    def wait_listening(self, port: int, protocol: str, timeout_s: float) -> bool:
        """Waits for a listener beside the program; false if it ends or the time is up first."""

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until the program sleeps; false if it ends or the time is up first."""


class End(Protocol):
    """What the lines of the table need to know of a machine."""

    @property
    def ipv4(self) -> str: ...

    @property
    def ipv6(self) -> str: ...

    def words(self) -> Mapping[str, str]:
        """What commands call its things: `device`, `gid`, `gid6`, `folder`, `namespace`."""

    def start(self, line: Line, argv: list[str], environment: dict[str, str]) -> Running:
        """Starts a program of the line."""

    def forget(self, program: Running) -> None:
        """Ends a program, if it still runs."""

    def counters(self) -> dict[str, int]:
        """What its device has counted."""


@dataclass(frozen=True)
class AirdmaEnd:
    """A host of the lab, where programs run on airdma."""

    host: Host
    folder: Path
    """Where programs find what the tests made for them."""

    @property
    def ipv4(self) -> str:
        return self.host.ipv4

    @property
    def ipv6(self) -> str:
        return self.host.ipv6

    def words(self) -> Mapping[str, str]:
        return {
            "device": devices.DEVICE,
            "gid": str(devices.gid_index(self.host, 4)),
            "gid6": str(devices.gid_index(self.host, 6)),
            "folder": str(self.folder),
            "namespace": self.host.namespace,
            "rspreload": str(next(Path("/usr/lib").glob("*/rsocket/librspreload.so"), "")),
        }

    def start(self, line: Line, argv: list[str], environment: dict[str, str]) -> Running:
        dropin = [str(build.binary()), "run", "--dropin", "--", *argv]
        return self.host.start(dropin if line.dropin else build.with_airdma(argv), environment)

    def forget(self, program: Running) -> None:
        assert isinstance(program, Program)
        self.host.forget(program)

    def counters(self) -> dict[str, int]:
        return devices.counters(self.host)
