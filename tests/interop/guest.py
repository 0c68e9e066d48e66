"""A virtual machine on the lab's wire: boots it, runs commands in it, turns it off."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self

from airdma_lab.lab import INTERFACE, Host, Lab, LabError
from airdma_lab.program import Outcome
from image import Image

TAP = "tap0"
BOOT_S = 120.0
"""It takes 5 to 8 s without acceleration, on an idle machine."""
HOST_FOLDER = "/mnt/host"
"""Where the guest sees `Guest.folder`."""

CAPTURE_LAG_S = 0.5
"""dumpcap has a packet when the kernel hands over the block that it is in: after a quarter of a
second, if it is not full.
"""

_COMMAND_LINE = (
    "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable nowatchdog audit=0 apparmor=0 "
    "net.ifnames=0 "
    "rcupdate.rcu_expedited=1 random.trust_cpu=on cryptomgr.notests"
)


class GuestError(RuntimeError):
    """The guest is gone, or does not do as it is told."""


class BootError(GuestError):
    """It did not come up: nothing was tested."""


class Job:
    """A command that runs in the guest."""

    def __init__(self, guest: Guest, name: str, argv: tuple[str, ...]) -> None:
        self._guest = guest
        self.name = name
        self.argv = argv
        self._started = time.monotonic()
        self._outcome: Outcome | None = None

    def wait(self, timeout_s: float) -> Outcome:
        """Waits for the end, kills at the deadline, returns the outcome. May be called again."""
        if self._outcome is None:
            status = self._guest.status_of(self.name, timeout_s)
            timed_out = status is None
            if status is None:
                self.signal(signal.SIGKILL)
                status = self._guest.status_of(self.name, 10)
            # As a shell puts it: above 128, the signal that ended it.
            returncode = -9 if status is None else 128 - status if 128 < status <= 192 else status
            self._outcome = Outcome(
                argv=self.argv,
                returncode=returncode,
                stdout=self._read("out"),
                stderr=self._read("err"),
                wall_s=time.monotonic() - self._started,
                cpu_s=0.0,
                timed_out=timed_out,
            )
        return self._outcome

    def has_exited(self) -> bool:
        return self._guest.status_of(self.name, 0) is not None

    def stop(self, timeout_s: float = 5) -> Outcome:
        """Asks the program to end (SIGTERM, then SIGKILL). One that obeys counts as having ended
        well.
        """
        if self._outcome is None and self._guest.status_of(self.name, 0) is None:
            self.signal(signal.SIGTERM)
            outcome = self.wait(timeout_s)
            if outcome.returncode == -signal.SIGTERM:
                self._outcome = replace(outcome, returncode=0)
        return self.wait(0)

    def signal(self, number: signal.Signals) -> None:
        """Signals all its processes."""
        self._guest.tell(f"kill {self.name} {number.name.removeprefix('SIG')}")

    def wait_listening(self, port: int, protocol: str, timeout_s: float) -> bool:
        """Waits for a listener in the guest; false if the job ends or the time is up first."""
        return self._guest.run(["wait-for", self.name, protocol, str(port)], timeout_s=timeout_s).ok

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until the job sleeps; false if it ends or the time is up first."""
        return self._guest.run(["wait-for", self.name, "idle"], timeout_s=timeout_s).ok

    def _read(self, kind: str) -> str:
        return self._guest.jobs.joinpath(f"{self.name}.{kind}").read_text(encoding="utf-8", errors="replace")


class Guest:
    """Context manager: the guest runs inside the `with` block, on the same wire as host `a` of the
    lab.

    Host `b` of the lab is a switch then: a bridge joins its end of the cable with the guest's TAP
    device.
    """

    def __init__(self, lab: Lab, image: Image, memory_mib: int = 2048) -> None:
        self.lab = lab
        self._image = image
        self._memory_mib = memory_mib
        self.folder = Path(lab.b.runtime, "guest")
        self.jobs = self.folder / "jobs"
        self._wire = lab.b
        self._qemu: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._heard = b""
        self._ended: dict[str, int] = {}
        self._number = 0

    ipv4 = "10.77.0.2"
    ipv6 = "fd77::2"

    def __enter__(self) -> Self:
        try:
            self._plug_in()
            self._boot()
        except (GuestError, LabError) as error:
            self.close()
            raise BootError(str(error)) from None
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, argv: list[str], environment: dict[str, str] | None = None) -> Job:
        """Starts a program in the guest."""
        exports = [f"export {name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
        return self.start_script("\n".join([*exports, f"exec {shlex.join(argv)}"]), tuple(argv))

    def start_script(self, script: str, argv: tuple[str, ...] = ()) -> Job:
        """The same for lines of bash."""
        self._number += 1
        name = f"job{self._number}"
        (self.jobs / f"{name}.sh").write_text(script + "\n", encoding="utf-8")
        for kind in ("out", "err"):
            (self.jobs / f"{name}.{kind}").touch()
        self.tell(f"run {name}")
        return Job(self, name, argv or (script,))

    def run(self, argv: list[str], environment: dict[str, str] | None = None, timeout_s: float = 30) -> Outcome:
        """Runs a program in the guest to its end."""
        return self.start(argv, environment).wait(timeout_s)

    def script(self, script: str, timeout_s: float = 30) -> str:
        """Runs lines of bash, of which each must succeed, and returns what they print."""
        outcome = self.start_script(f"set -e\n{script}").wait(timeout_s)
        if not outcome.ok:
            raise GuestError(outcome.explain())
        return outcome.stdout

    def status_of(self, name: str, timeout_s: float) -> int | None:
        """The exit status of a job, if it ends in time."""
        deadline = time.monotonic() + timeout_s
        while name not in self._ended:
            left = max(deadline - time.monotonic(), 0.0)
            if not self._hear(left) and left == 0.0:
                return None
        return self._ended[name]

    def tell(self, line: str) -> None:
        """Sends the guest's first process a line: see guest/init."""
        assert self._socket is not None
        try:
            self._socket.sendall(line.encode() + b"\n")
        except OSError as error:
            raise GuestError(f"the guest is gone ({error})\n{self.console()}") from None

    @property
    def is_there(self) -> bool:
        """Whether it still runs."""
        return self._qemu is not None and self._qemu.poll() is None

    def console(self) -> str:
        """The last that its kernel said."""
        log = self.folder / "console"
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log.exists() else ""

    def close(self) -> None:
        """Turns the guest off and unplugs it."""
        if self._qemu is not None:
            with contextlib.suppress(GuestError):
                if self._socket is not None:
                    self.tell("off")
            try:
                self._qemu.wait(10)
            except subprocess.TimeoutExpired:
                self._qemu.kill()
                self._qemu.wait()
            self._qemu = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def set_mtu(self, mtu: int) -> None:
        """Sets the MTU of every interface on the wire."""
        self._ip(self.lab.a, "link", "set", INTERFACE, "mtu", str(mtu))
        for interface in (INTERFACE, TAP, "wire"):
            self._ip(self._wire, "link", "set", interface, "mtu", str(mtu))
        self.script(f"ip link set eth0 mtu {mtu}")

    @contextlib.contextmanager
    def capture(self, file: Path) -> Iterator[None]:
        """Writes what crosses the wire to a pcap."""
        # Not tcpdump: Debian's wants to become another user, and there is none in a user namespace.
        argv = ["dumpcap", "-q", "-P", "-B", "64", "-i", TAP, "-w", str(file), "-f", "udp port 4791"]
        process = subprocess.Popen(
            self._within(argv), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        assert process.stderr is not None
        if not any(line.startswith(b"File: ") for line in process.stderr):
            raise LabError("dumpcap does not start")
        try:
            yield
            time.sleep(CAPTURE_LAG_S)
        finally:
            process.terminate()
            process.communicate()

    @contextlib.contextmanager
    def capture_inside(self, interface: str, file: Path) -> Iterator[None]:
        """Writes what crosses an interface of the guest to a pcap."""
        name = f"{interface}.pcap"
        # Each place of the buffer has room for the longest packet asked for, and the host's folder
        # is slow.
        options = ["--immediate-mode", "-B", "65536", "-s", "2048", "-Z", "root"]
        job = self.start(["tcpdump", "-i", interface, "-w", f"/tmp/{name}", *options, "udp port 4791"])
        self.script(f"until grep -q listening {HOST_FOLDER}/jobs/{job.name}.err; do sleep 0.05; done")
        try:
            yield
        finally:
            with contextlib.suppress(GuestError):
                job.stop()
            self.script(f"mv /tmp/{name} {HOST_FOLDER}/")
            self.folder.joinpath(name).replace(file)

    def _within(self, argv: list[str]) -> list[str]:
        return [*self._wire.inside(), *argv]

    def _ip(self, host: Host, *arguments: str) -> None:
        result = subprocess.run(["ip", "-n", host.namespace, *arguments], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise LabError(f"ip {' '.join(arguments)}: {result.stderr.strip()}")

    def _plug_in(self) -> None:
        wire, mtu = self._wire, str(self.lab.mtu)
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            raise GuestError(
                "no access to /dev/net/tun, by which the guest's network is connected: chmod 666 /dev/net/tun"
            )
        self._ip(wire, "address", "flush", "dev", INTERFACE)
        self._ip(wire, "tuntap", "add", "dev", TAP, "mode", "tap")
        # The bridge forwards from the first moment, and keeps no table of groups: no host sends
        # queries.
        self._ip(wire, "link", "add", "wire", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        for interface in (INTERFACE, TAP):
            self._ip(wire, "link", "set", interface, "mtu", mtu, "master", "wire")
            self._ip(wire, "link", "set", interface, "up")
        self._ip(wire, "link", "set", "wire", "mtu", mtu, "up")

    def _boot(self) -> None:
        self.jobs.mkdir(parents=True)
        network = f"MTU={self.lab.mtu}\nIPV4={self.ipv4}/24\nIPV6={self.ipv6}/64\n"
        (self.folder / "network").write_text(network, encoding="ascii")
        control = self.folder.with_name("guest.sock")
        # No offloads: what crosses the TAP is then what would leave a NIC.
        plain = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,romfile="
        drive = f"file={self._image.root},format=raw,if=virtio,snapshot=on,cache=unsafe"
        argv = [
            *["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-machine", "q35", "-smp", "2"],
            *["-m", str(self._memory_mib), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"],
            *["-serial", f"file:{self.folder / 'console'}"],
            *["-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd), "-append", _COMMAND_LINE],
            *["-drive", drive, "-device", "virtio-rng-pci"],
            *["-virtfs", f"local,path={self.folder},mount_tag=host,security_model=none"],
            *["-chardev", f"socket,id=airdma,path={control},server=on,wait=off", "-device", "virtio-serial"],
            *["-device", "virtserialport,chardev=airdma,name=airdma"],
            *["-netdev", f"tap,id=wire,ifname={TAP},script=no,downscript=no"],
            *["-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:77:00:02,host_mtu=9000,{plain}"],
        ]
        errors = (self.folder / "qemu").open("wb")
        self._qemu = subprocess.Popen(
            self._within(argv), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
        )
        errors.close()
        deadline = time.monotonic() + BOOT_S
        self._socket = self._connect(control, deadline)
        while "up" not in self._ended:
            if time.monotonic() > deadline or (not self._hear(0.5) and self._qemu.poll() is not None):
                raise GuestError(f"the guest does not come up:\n{self._complaint()}")

    def _connect(self, control: Path, deadline: float) -> socket.socket:
        assert self._qemu is not None
        while time.monotonic() < deadline and self._qemu.poll() is None:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                channel.connect(str(control))
            except OSError:
                channel.close()
                time.sleep(0.02)
                continue
            return channel
        raise GuestError(f"QEMU does not start:\n{self._complaint()}")

    def _complaint(self) -> str:
        return f"{(self.folder / 'qemu').read_text(errors='replace')}{self.console()}"

    def _hear(self, timeout_s: float) -> bool:
        """Takes in what the guest says, and returns whether it said something."""
        assert self._socket is not None
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            heard = self._socket.recv(4096)
        except TimeoutError:
            return False
        finally:
            self._socket.settimeout(None)
        if not heard:
            raise GuestError(f"the guest is gone\n{self.console()}")
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            name, _, rest = line.decode(errors="replace").partition(" ")
            if not rest.isdigit() and name != "up":
                raise GuestError(f"the guest says {line!r}")
            self._ended[name] = int(rest) if rest.isdigit() else 0
        return True
