"""What was seen when the lines of the table last ran, and the document that says it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

from airdma_lab import build

from programs.line import Line
from programs.table import BY_HAND, DOES_NOT_RUN, LINES, lines

SEEN = Path(__file__).resolve().with_name("seen.json")
"""Name of the line -> the version of its package when it last passed."""
SOCKETS_SEEN = build.ROOT / "tests" / "sockets" / "seen.json"
"""The same of socket programs, which tests/sockets/run.py --record writes."""
DOCUMENT = build.ROOT / "docs" / "programs.md"


def write(results: dict[str, bool]) -> None:
    """Records what has just been seen, and writes the document."""
    seen = _seen()
    for line in lines():
        if line.name in results:
            seen[line.name] = _version(line) if results[line.name] else ""
    known = {line.name for line in lines()}
    kept = {name: seen[name] for name in sorted(seen) if name in known}
    SEEN.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    DOCUMENT.write_text(render(), encoding="utf-8")


def _version(line: Line) -> str:
    return line.version() if line.version else version(line.package)


def version(package: str) -> str:
    """Version of an installed Debian package; "-" for programs of the tests."""
    if not package:
        return "-"
    query = ["dpkg-query", "--show", "--showformat=${Version}", package]
    found = subprocess.run(query, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "?"


def render() -> str:
    """docs/programs.md."""
    seen = _seen()
    passed = sum(bool(seen.get(line.name)) for line in lines())
    parts = [
        "# Programs that run on airdma",
        "Written by `make programs`, which runs them all; `make lint` checks that this page has every line of the table in "
        "`tests/system/programs`, and `make test` runs each line, except programs that are built from sources. "
        f"{passed} of {len(lines())} lines passed in the last run.",
        "Every program is Debian 12's (or PyPI's, where noted), unmodified, under `airdma run`, in two network namespaces joined by a "
        "veth pair of MTU 1500. A line passes when both ends exit as expected, their output confirms the work "
        "(programs that can verify data do), and the counters of both devices show that the data crossed them. "
        "`SERVER` and `CLIENT` are IPv4 addresses, `SERVER6` and `CLIENT6` IPv6 addresses; "
        "`DEVICE` is the device's name, `GID` and `GID6` the indices of its IPv4 and IPv6 GIDs, `DIR` a folder, `RSPRELOAD` the "
        "path of librdmacm's `rsocket/librspreload.so`.",
    ]
    for title, group in LINES.items():
        parts += [f"## {title}", _table(group, seen)]
    parts += [
        "## Socket programs",
        "Written by `tests/sockets/run.py --only programs --record`. Under `airdma sockets --udp` between the same two namespaces, "
        "with the library at both ends, at one, and at none: the client's output is what it must be, and the same where it does not "
        "depend on time. *Lanes*: which of its protocols used RDMA with the library at both ends. `HOME` and `FILES` are folders.",
        _sockets(),
    ]
    parts += ["## Run by hand", "Under `airdma run` between the same two namespaces, on 25 November 2026.", _by_hand()]
    parts += ["## What does not run", _does_not_run()]
    return "\n\n".join(parts) + "\n"


def _table(group: list[Line], seen: dict[str, str]) -> str:
    rows = [
        "| program | version | on the server | on the client | set up by | result |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in group:
        found = seen.get(line.name, "")
        package = f"{line.package} {found}" if line.package else "tests/system/programs"
        setup = [f"`{name}={_readable(value)}`" for name, value in line.setup.items()]
        setup += ["`airdma run --dropin`"] if line.dropin else []
        setup += [line.note] if line.note else []
        several = f"{line.clients} at the same time: " if line.clients > 1 else ""
        cells = [
            f"`{line.program}`",
            package.strip(),
            f"`{_readable(line.server)}`" if line.server else "",
            f"{several}`{_readable(line.client)}`",
            "; ".join(setup),
            "passed" if found else "failed",
        ]
        rows.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(rows)


def _sockets() -> str:
    rows = [
        "| program | version | on the server | on the client | library at | lanes | result |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    seen = json.loads(SOCKETS_SEEN.read_text(encoding="utf-8")) if SOCKETS_SEEN.exists() else {}
    for name, found in seen.items():
        cells = [
            name,
            found["package"],
            "; ".join(f"`{_readable(command)}`" for command in found["servers"]),
            f"`{_readable(found['client'])}`",
            ", ".join(found["ends"]),
            ", ".join(found["lanes"]) or "none",
            "passed" if found["passed"] else "failed",
        ]
        cells = [cell.replace("|", "&#124;").replace("\n", "\\n") for cell in cells]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _by_hand() -> str:
    rows = ["| program | how | result |", "| --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {program} | {how} | {seen} |" for program, how, seen in BY_HAND)])


def _does_not_run() -> str:
    if not DOES_NOT_RUN:
        return "Nothing."
    return "\n".join(
        ["| command | why |", "| --- | --- |", *(f"| {command} | {why} |" for command, why in DOES_NOT_RUN.items())]
    )


def _readable(command: str) -> str:
    """The command as one would type it."""
    command = command.replace("{folder}", "DIR")
    return re.sub(r"\{(\w+)\}", lambda word: word.group(1).upper(), command)


def _seen() -> dict[str, str]:
    found: dict[str, str] = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
    return found
