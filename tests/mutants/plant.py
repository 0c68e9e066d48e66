"""Plants mutants of cargo-mutants in a copy of the sources, all of them at once: each function that
has any is written with one more body for each, and an environment variable says at run time which
body is meant.

    fn window(&self) -> u32 {
        match crate::planted() {
            17 => { self.limit + self.sent }
            18 => { 0 }
            _ => { self.limit - self.sent }
        }
    }
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

SWITCH = "AIRDMA_MUTANT"

# Goes to the crate that the others depend on; 0 is no mutant.
SWITCH_CODE = f"""
/// The mutant that is meant.
#[doc(hidden)]
pub fn planted() -> u32 {{
    static PLANTED: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {{
        std::env::var("{SWITCH}").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
    }});
    *PLANTED
}}
"""

Place = tuple[int, int]


@dataclass(frozen=True)
class Mutant:
    """One entry of `cargo mutants --list --json`."""

    number: int
    file: str
    what: str  # "replace < with <= in Requester::pump"
    line: int
    column: int
    source: str  # the line that it changes, as it is
    replacement: str
    span: tuple[Place, Place]
    function: str | None
    function_span: tuple[Place, Place] | None

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.what}"

    @staticmethod
    def of(number: int, entry: dict[str, Any], text: str) -> Mutant:
        function = entry["function"]
        span = _span(entry["span"])
        (line, column), _ = span
        return Mutant(
            number=number,
            file=entry["file"],
            what=entry["name"].split(": ", 1)[1],
            line=line,
            column=column,
            source=text.split("\n")[line - 1].strip(),
            replacement=entry["replacement"],
            span=span,
            function=function["function_name"] if function else None,
            function_span=_span(function["span"]) if function else None,
        )


def _span(span: dict[str, Any]) -> tuple[Place, Place]:
    def place(end: str) -> Place:
        return (span[end]["line"], span[end]["column"])

    return place("start"), place("end")


@dataclass
class Planted:
    """A file with mutants in it."""

    text: str
    lines: list[tuple[int, int, Mutant]] = field(default_factory=list)  # first and last line of each one's body
    left_out: list[Mutant] = field(default_factory=list)  # those in no function, or in one that has to stay `const`

    def at(self, line: int) -> Mutant | None:
        return next((mutant for first, last, mutant in self.lines if first <= line <= last), None)


def alone(text: str, mutant: Mutant) -> str:
    """The file with this mutant in the place of what it replaces."""
    start, end = (_offset(text, place) for place in mutant.span)
    return f"{text[:start]}{mutant.replacement} {text[end:]}"


def plant(text: str, mutants: list[Mutant], switch: str, constant: set[str]) -> Planted:
    """The file with all these mutants. `switch` is the path of `planted`; the functions of
    `constant` stay as they are.
    """
    planted = Planted(text)
    functions: dict[tuple[int, int], list[Mutant]] = {}
    for mutant in mutants:
        if mutant.function_span is None or (mutant.function or "").split("::")[-1] in constant:
            planted.left_out.append(mutant)
            continue
        start, end = (_offset(text, place) for place in mutant.function_span)
        functions.setdefault((start, end), []).append(mutant)
    for inner in list(functions):
        outer = next(
            (other for other in functions if other != inner and other[0] <= inner[0] and inner[1] <= other[1]), None
        )
        if outer:
            functions[outer] += functions.pop(inner)
    out = ""
    done = 0
    for (start, end), inside in sorted(functions.items()):
        opening = _body(text, start)
        head = re.sub(r"\bconst\s+fn\b", "fn", text[start:opening])
        out += f"{text[done:start]}{head}{{ match {switch}() {{\n"
        for mutant in inside:
            first, last = (_offset(text, place) for place in mutant.span)
            body = f"{mutant.number} => {text[opening:first]}{mutant.replacement} {text[last:end]}\n"
            line = out.count("\n") + 1
            out += body
            planted.lines.append((line, line + body.count("\n") - 1, mutant))
        out += f"_ => {text[opening:end]}\n}} }}"
        done = end
    planted.text = out + text[done:]
    return planted


def _offset(text: str, place: Place) -> int:
    line, column = place
    at = 0
    for _ in range(line - 1):
        at = text.index("\n", at) + 1
    return at + column - 1


# What may hold brackets that are none: comments, strings, characters.
_OPAQUE = re.compile(r'//[^\n]*|/\*.*?\*/|b?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\'\\])\'', re.DOTALL)


def _body(text: str, at: int) -> int:
    """Where the body of the function that begins at `at` opens."""
    depth = 0
    while True:
        opaque = _OPAQUE.match(text, at)
        if opaque:
            at = opaque.end()
            continue
        character = text[at]
        if character == "{" and depth == 0:
            return at
        depth += (character in "([{") - (character in ")]}")
        at += 1
