#!/usr/bin/env python3
"""Counts what makes comments hard to read, in all tracked sources, and fails where a count exceeds
its limit.

  python3 tests/text.py                    the counts, by crate or folder
  python3 tests/text.py --list AREA [...]  file and line of each find in these areas (or below a path)

The rule for comments: third person, one subject, the specification's noun, a verb. `PATTERNS` holds
what breaks it. `LIMITS` only ever falls: when text is mended, lower the number to what this script
prints.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COLUMNS_MAX = 100
"""Longest line of a comment."""
NAME_MAX = 60
"""Letters of a test's name."""

LIMITS = {
    "who": 0,
    "nobody": 0,
    "fragment": 0,
    "so many": 0,
    "calque": 0,
    "people": 0,
    "wide": 0,
    "name": 0,
}
"""Finds of each pattern in all sources."""

GROUPED = ("crates", "testing", "bench", "tests", "tools")
"""Folders whose subfolders are areas of their own."""

OPENING = r"(?:^|(?<=[.!?] ))(?:[-*] )?"
"""Where a sentence begins."""

PATTERNS = {
    "who": re.compile(OPENING + r"(?:Who|Whoever|Whom|Whose)\b(?![^.!?]*\?)"),
    "nobody": re.compile(r"\b(?:nobody|somebody|someone|no one)\b(?! of the)", re.IGNORECASE),
    "fragment": re.compile(r"^(?:Of|And)\b|" + OPENING + r"Of\b(?=[^,.:]*(?:[.:]|$))"),
    "so many": re.compile(r"\bso (?:many|much|long|large|few|often)\b(?! (?:as|that)\b)", re.IGNORECASE),
    "calque": re.compile(
        r"\bcan nothing\b|\b(?:is|are|was|were) to (?:be|have|do|say|call|answer|send|wait|give)\b"
        r"|\bunder way\b|\b(?:is|are|was|were) looked for\b",
        re.IGNORECASE,
    ),
    "people": re.compile(
        r"\bmourn(?:s|ed|ing|er|ers)?\b|\bbur(?:y|ies|ied|ying)\b|\bestates?\b|\blast words\b"
        r"|\bthe dead\b(?! (?:process|producer|peer|member|one|thread))"
        r"|\b(?:go|goes|went|going) to bed\b|\bspeaks? for\b|\b(?:a|the|its|their|last) wills?\b(?! not)",
        re.IGNORECASE,
    ),
}


TABLE_ROW = re.compile(r"^\s*//[/!] \|")
"""Cannot be wrapped."""


@dataclass(frozen=True)
class Block:
    """Comment lines that belong together: the number of the first one, the lines without their
    markers.
    """

    first: int
    lines: list[str]


@dataclass(frozen=True)
class Find:
    pattern: str
    line: int
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description="counts what makes comments hard to read")
    parser.add_argument("--list", nargs="+", metavar="AREA", help="print each find in these areas or below these paths")
    parser.add_argument("--pattern", choices=[*PATTERNS, "wide", "name"], help="with --list: only this pattern")
    options = parser.parse_args()
    finds = {path: find_all(path.suffix, (ROOT / path).read_text(encoding="utf-8")) for path in sources()}
    if options.list:
        for path, found in finds.items():
            if any(area(path) == name or str(path).startswith(name) for name in options.list):
                print_finds(path, [find for find in found if options.pattern in (None, find.pattern)])
        return 0
    counts: dict[str, Counter[str]] = {}
    for path, found in finds.items():
        counts.setdefault(area(path), Counter()).update(find.pattern for find in found)
    total = sum(counts.values(), Counter[str]())
    print_table(counts, total)
    exceeded = [pattern for pattern, limit in LIMITS.items() if total[pattern] > limit]
    for pattern in exceeded:
        for path, found in finds.items():
            print_finds(path, [find for find in found if find.pattern == pattern])
        print(f"text: {total[pattern]} finds of `{pattern}`, at most {LIMITS[pattern]} are allowed")
    print(f"text: {'FAILED' if exceeded else 'ok'}")
    return 1 if exceeded else 0


def sources() -> list[Path]:
    """Tracked files that this script reads."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [Path(name) for name in listed.split("\0") if name]
    return [path for path in paths if path.suffix in (".rs", ".py", ".c", ".h", ".sh") and (ROOT / path).is_file()]


def area(path: Path) -> str:
    """The crate or folder that a file is counted for."""
    depth = 2 if path.parts[0] in GROUPED and len(path.parts) > 2 else 1
    return "/".join(path.parts[:depth])


def find_all(suffix: str, source: str) -> list[Find]:
    """All finds of one file, by its lines."""
    found = [find for block in blocks(suffix, source) for find in in_block(block)]
    for number, line in enumerate(source.splitlines(), start=1):
        if len(line) > COLUMNS_MAX and is_comment(suffix, line) and not TABLE_ROW.match(line):
            found.append(Find("wide", number, line.strip()))
    found += [Find("name", number, name) for number, name in test_names(suffix, source) if len(name) > NAME_MAX]
    return sorted(found, key=lambda find: find.line)


def in_block(block: Block) -> list[Find]:
    """Finds of the patterns in one block, whose paragraphs are joined to one line each."""
    found = []
    for first, paragraph in paragraphs(block):
        for pattern, expression in PATTERNS.items():
            for match in expression.finditer(paragraph):
                line = first + line_offset(block.lines[first - block.first :], match.start())
                found.append(Find(pattern, line, paragraph[max(0, match.start() - 40) : match.end() + 80]))
    return found


def line_offset(lines: list[str], position: int) -> int:
    """Which of the joined lines holds a position."""
    for offset, line in enumerate(lines):
        position -= len(line.strip()) + 1
        if position < 0:
            return offset
    return len(lines) - 1


def paragraphs(block: Block) -> list[tuple[int, str]]:
    """First line and text of each paragraph; code between fences is left out."""
    result: list[tuple[int, str]] = []
    fenced = False
    starts = True
    for number, line in enumerate(block.lines, start=block.first):
        text = line.strip()
        if text.startswith("```"):
            fenced = not fenced
            starts = True
        elif fenced or not text:
            starts = True
        elif starts or re.match(r"(?:[-*#|]|\d+\.) ", text):
            result.append((number, text))
            starts = False
        else:
            result[-1] = (result[-1][0], f"{result[-1][1]} {text}")
    return result


def blocks(suffix: str, source: str) -> list[Block]:
    if suffix == ".py":
        return python_blocks(source)
    marker = r"#(?!!)" if suffix == ".sh" else r"//[/!]?|/\*+|\*/|\*(?= |$)"
    return line_blocks(source, re.compile(rf"^(?P<indent>\s*)(?P<marker>{marker}) ?(?P<text>.*?)(?:\*/)?$"))


def line_blocks(source: str, comment: re.Pattern[str]) -> list[Block]:
    """Neighbouring lines of comments with the same marker, and comments behind code, each by
    itself.
    """
    result: list[Block] = []
    previous = None
    for number, line in enumerate(source.splitlines(), start=1):
        match = comment.match(line)
        if match:
            marker = match["marker"] if match["marker"].startswith("//") else "*"
            if previous == (number - 1, match["indent"], marker) or (marker == "*" and previous and previous[2] == "*"):
                result[-1].lines.append(match["text"])
            else:
                result.append(Block(number, [match["text"]]))
            previous = (number, match["indent"], marker)
            continue
        previous = None
        behind = re.match(r'^(?:[^"]|"(?:[^"\\]|\\.)*")*?\s// (?P<text>.*)$', line)
        if behind:
            result.append(Block(number, [behind["text"]]))
    return result


def python_blocks(source: str) -> list[Block]:
    """Comments, and strings that stand by themselves: docstrings, also those of attributes."""
    result: list[Block] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("#!"):
            text = token.string.lstrip("#: ")
            alone = token.line.strip().startswith("#")
            if alone and result and result[-1].first + len(result[-1].lines) == token.start[0]:
                result[-1].lines.append(text)
            else:
                result.append(Block(token.start[0], [text]))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            result.append(Block(node.lineno, node.value.value.splitlines()))
    return result


def is_comment(suffix: str, line: str) -> bool:
    markers = ("#", '"""') if suffix in (".py", ".sh") else ("//", "/*", "* ")
    return line.strip().startswith(markers)


def test_names(suffix: str, source: str) -> list[tuple[int, str]]:
    """Line and name of each test."""
    if suffix == ".rs":
        expression = re.compile(r"#\[test\]\s*(?:(?:#\[[^\n]*|//[^\n]*)\s*)*(?:pub )?fn (\w+)")
    elif suffix == ".py":
        expression = re.compile(r"^ *def (test_\w+)", re.MULTILINE)
    else:
        return []
    return [(source.count("\n", 0, match.start(1)) + 1, match[1]) for match in expression.finditer(source)]


def print_finds(path: Path, found: list[Find]) -> None:
    for find in found:
        print(f"{path}:{find.line}: {find.pattern}: {find.text}")


def print_table(counts: dict[str, Counter[str]], total: Counter[str]) -> None:
    columns = [*PATTERNS, "wide", "name"]
    print(f"{'':<22}" + "".join(f"{pattern:>10}" for pattern in columns))
    for name, found in [*sorted(counts.items()), ("all", total), ("limit", Counter(LIMITS))]:
        print(f"{name:<22}" + "".join(f"{found[pattern]:>10}" for pattern in columns))


if __name__ == "__main__":
    sys.exit(main())
