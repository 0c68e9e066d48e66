#!/usr/bin/env python3
"""Records a transfer by `airdma recv` and `airdma send` between two hosts on this machine, to
docs/send.svg.

Two network namespaces joined by a veth, the real commands at terminals of their own, a person's
keys typed by this script. The picture moves: each screen is shown as long as it was there. Needs a
release binary (`make build`); root, or user namespaces.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from airdma_lab import build, privileges
from airdma_lab.lab import INTERFACE, Host, Lab

COLUMNS, ROWS = 96, 9
FONT_PX, LINE_PX, LETTER_PX, EDGE_PX = 13, 18, 7.83, 14
KEY_S = 0.09
"""How fast the person types."""
END_S = 3.0
"""How long the last screen stays."""
FRAME_S = 0.15
"""Screens that are there for less are not shown."""
_CODE = re.compile(r"code: (\w+-\w+)")


@dataclass
class Screen:
    """As much of a terminal as a progress bar needs: text, carriage return, erasing a line, and
    moving up.
    """

    lines: list[str] = field(default_factory=lambda: [""])
    row: int = 0
    column: int = 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+|\x1b", text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self._down(1)
            elif part.startswith("\x1b"):
                self._obey(part)
            else:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + len(part) :]
                self.column += len(part)

    def shown(self) -> list[str]:
        lines = [line[:COLUMNS].rstrip() for line in self.lines]
        while lines and not lines[-1]:
            lines.pop()
        return lines[-ROWS:]

    def _obey(self, sequence: str) -> None:
        count = int(re.sub(r"\D", "", sequence) or 1)
        if sequence.endswith("K"):
            self.lines[self.row] = "" if sequence.endswith("2K") else self.lines[self.row][: self.column]
        elif sequence.endswith("A"):
            self.row = max(0, self.row - count)
        elif sequence.endswith("B"):
            self._down(count)
        elif sequence.endswith("G"):
            self.column = count - 1

    def _down(self, count: int) -> None:
        self.row += count
        self.lines += [""] * (self.row + 1 - len(self.lines))


class Terminal:
    """A person's terminal on one host."""

    def __init__(self, host: Host, name: str, home: Path) -> None:
        self.screen = Screen([f"{name}$ "], column=len(name) + 2)
        self._name = name
        self._host = host
        self._home = home
        self._pty = -1
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, words: str) -> None:
        """Runs a command whose words were typed."""
        self.screen.feed("\r\n")
        self._pty, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {**os.environ, "AIRDMA_HOME": str(self._home / f".{self._name}"), "TERM": "xterm"}
        environment["XDG_RUNTIME_DIR"] = str(self._host.runtime)
        self._child = subprocess.Popen(
            [*self._host.inside(), "setsid", "--ctty", "--wait", str(build.binary()), *words.split()[1:]],
            stdin=slave, stdout=slave, stderr=slave, cwd=self._home, env=environment, close_fds=True,
        )  # fmt: skip
        os.close(slave)

    def type(self, letter: str) -> None:
        if self._child:
            os.write(self._pty, letter.encode())
        else:
            self.screen.feed(letter)

    def look(self) -> None:
        """Takes what was written."""
        while self._child and select.select([self._pty], [], [], 0)[0]:
            try:
                text = os.read(self._pty, 65536).decode(errors="replace")
            except OSError:
                text = ""
            if not text:
                self._child.wait()
                self._child = None
                self.screen.feed(f"\r{self._name}$ ")
                return
            self.screen.feed(text)

    @property
    def is_at_rest(self) -> bool:
        return self._child is None

    def shows(self, text: str) -> bool:
        return text in "\n".join(self.screen.lines)


class Recording:
    """What both terminals show, and since when."""

    def __init__(self, terminals: list[Terminal]) -> None:
        self.terminals = terminals
        self.frames: list[tuple[float, list[list[str]]]] = []
        self._started = time.monotonic()

    def run(self, until: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not until() and time.monotonic() < deadline:
            self._take()
            time.sleep(0.02)
        self._take()

    def pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.run(lambda: time.monotonic() >= end)

    def type(self, terminal: Terminal, text: str) -> None:
        for letter in text:
            terminal.type(letter)
            self.pause(KEY_S)

    def _take(self) -> None:
        for terminal in self.terminals:
            terminal.look()
        now = time.monotonic() - self._started
        shown = [terminal.screen.shown() for terminal in self.terminals]
        if self.frames and self.frames[-1][1] == shown:
            return
        if self.frames and now - self.frames[-1][0] < FRAME_S / 2:
            self.frames[-1] = (self.frames[-1][0], shown)
        else:
            self.frames.append((now, shown))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=build.ROOT / "docs" / "send.svg")
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--mbit", type=int, default=900, help="what the link carries")
    arguments = parser.parse_args()
    build.require()
    privileges.enter()
    with tempfile.TemporaryDirectory(prefix="airdma-record-") as folder, Lab() as lab:
        frames = _record(lab, Path(folder), arguments.megabytes, arguments.mbit)
    arguments.output.write_text(_svg(frames), encoding="utf-8")
    size = arguments.output.stat().st_size
    print(f"{arguments.output}: {len(frames)} screens, {frames[-1][0] + END_S:.0f} s, {size} bytes")
    return 0


def _record(lab: Lab, folder: Path, megabytes: int, mbit: int) -> list[tuple[float, list[list[str]]]]:
    photos = folder / "photos"
    photos.mkdir()
    (folder / "inbox").mkdir()
    for number in range(20):
        (photos / f"{number:04}.raw").write_bytes(os.urandom(megabytes * 50_000))
    tc = [*lab.a.inside(), "tc", "qdisc", "add", "dev", INTERFACE]
    subprocess.run([*tc, "root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "limit", "2mb"], check=True)
    anna, ben = Terminal(lab.b, "anna", folder), Terminal(lab.a, "ben", folder)
    recording = Recording([anna, ben])
    recording.pause(0.5)
    _run(recording, anna, "airdma recv --name anna inbox")
    recording.run(lambda: anna.shows("code:"))
    recording.pause(1)
    _run(recording, ben, "airdma send photos anna")
    recording.run(lambda: ben.shows("code that"))
    recording.pause(0.7)
    code = _CODE.search("\n".join(anna.screen.lines))
    if code is None:
        raise SystemExit("the receiver shows no code:\n" + "\n".join(anna.screen.lines))
    recording.type(ben, code.group(1) + "\r")
    recording.run(lambda: anna.shows("Accept?"))
    recording.pause(1.5)
    recording.type(anna, "y\r")
    recording.run(lambda: anna.is_at_rest and ben.is_at_rest)
    return recording.frames


def _run(recording: Recording, terminal: Terminal, words: str) -> None:
    recording.type(terminal, words)
    recording.pause(0.3)
    terminal.start(words)


def _svg(frames: list[tuple[float, list[list[str]]]]) -> str:
    """One group for each screen; those that a viewer without animation does not know of are hidden,
    but the last.
    """
    total = frames[-1][0] + END_S
    width = round(COLUMNS * LETTER_PX + 2 * EDGE_PX)
    pane = ROWS * LINE_PX + 2 * EDGE_PX
    height = 2 * pane + EDGE_PX
    font = f"font:{FONT_PX}px 'DejaVu Sans Mono',Menlo,Consolas,monospace"
    style = [f"text{{{font};fill:#d8dee9;white-space:pre}}", ".f{visibility:hidden}"]
    groups = []
    for number, (start, panes) in enumerate(frames):
        end = frames[number + 1][0] if number + 1 < len(frames) else total
        first, last = 100 * start / total, 100 * end / total
        before = f"0%{{visibility:hidden}}{first:.2f}%{{visibility:visible}}" if number else "0%{visibility:visible}"
        after = f"{last:.2f}%{{visibility:hidden}}" if last < 100 else ""
        style.append(f"@keyframes k{number}{{{before}{after}}}")
        style.append(f"#f{number}{{animation:k{number} {total:.2f}s step-end infinite}}")
        lines = [
            f'<text x="{EDGE_PX}" y="{at * (pane + EDGE_PX) + EDGE_PX + (row + 1) * LINE_PX - 5}">{escape(line)}</text>'
            for at, pane_lines in enumerate(panes)
            for row, line in enumerate(pane_lines)
            if line
        ]
        hidden = ' class="f"' if number + 1 < len(frames) else ""
        groups.append(f'<g id="f{number}"{hidden}>{"".join(lines)}</g>')
    boxes = "".join(
        f'<rect y="{at * (pane + EDGE_PX)}" width="{width}" height="{pane}" rx="8" fill="#21262f"/>' for at in range(2)
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join([head, "<style>", *style, "</style>", boxes, *groups, "</svg>", ""])


if __name__ == "__main__":
    sys.exit(main())
