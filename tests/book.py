#!/usr/bin/env python3
"""Checks the book (docs/SUMMARY.md, `mdbook build docs`).

Every page of docs is in it once; no link in a page of this repository leads nowhere; docs/reference
names each counter and each variable that the code has, and no other; and the manual page of records
has the functions, structures and constants of their header.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
TEST = re.compile(r"`(?:\w+::)*([a-z0-9]+(?:_[a-z0-9]+){3,})`")
"""Names of four words and more: nearly all of them are those of tests."""
ROW = re.compile(r"^\| `(\w+)`", re.MULTILINE)
VARIABLE = re.compile(r'"(AIRDMA_[A-Z_]+)"')
FOR_TESTS = re.compile(r"#\[cfg\(test\)\].*", re.DOTALL)
RENAMED = re.compile(r'"(\w+)" => "(drop_\w+)"')
"""Counters of a port that users see under another name."""
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
ROFF = re.compile(r'^\.(?:BI|nf|fi|PP|B)\b *"?', re.MULTILINE)
QUOTE = re.compile(r'" | "|"')
PROTOTYPE = re.compile(r"(?:int|struct ibv_mr \*)\s*airdma_\w+\([^)]*\)")
STRUCTURE = re.compile(r"struct (airdma_\w+) \{\n(.*?)\n\};", re.DOTALL)
ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def main() -> int:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    pages = {
        ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in names if name and (ROOT / name).is_file()
    }
    complaints = [
        *missing_complaints(pages),
        *link_complaints(pages),
        *reference_complaints(pages),
        *test_complaints(pages, _words()),
        *manual_complaints(
            (ROOT / "crates/verbs/include/airdma/verbs_record.h").read_text(encoding="utf-8"),
            (ROOT / "crates/verbs/man/airdma_record.3").read_text(encoding="utf-8"),
        ),
    ]
    for complaint in complaints:
        print(f"book: {complaint}")
    print(f"book: {'FAILED' if complaints else 'ok'}")
    return 1 if complaints else 0


def missing_complaints(pages: dict[Path, str]) -> list[str]:
    """What is in the table of contents, against what is there."""
    named = Counter((DOCS / target).resolve() for target in links(pages[SUMMARY]))
    there = {page for page in pages if page.is_relative_to(DOCS) and page != SUMMARY}
    complaints = [f"docs/SUMMARY.md does not name {_short(page)}" for page in sorted(there - named.keys())]
    complaints += [f"docs/SUMMARY.md names {_short(page)}, which is no page" for page in sorted(named.keys() - there)]
    return complaints + [
        f"docs/SUMMARY.md names {_short(page)} {count} times" for page, count in named.items() if count > 1
    ]


def link_complaints(pages: dict[Path, str]) -> list[str]:
    """Relative links to missing files, to files outside the book, or to missing headings."""
    complaints = []
    for page, text in pages.items():
        for link in links(text):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                complaints.append(f"{_short(page)}: {link} leads nowhere")
            elif page.is_relative_to(DOCS) and not target.is_relative_to(DOCS):
                complaints.append(f"{_short(page)}: {link} leads out of the book: name the file as code")
            elif anchor and target in pages and anchor not in anchors(pages[target]):
                complaints.append(f"{_short(page)}: {_short(target)} has no heading for {link}")
    return complaints


def reference_complaints(pages: dict[Path, str]) -> list[str]:
    """The tables of docs/reference against the code."""
    sources = [path for path in sorted(ROOT.glob("crates/*/src/**/*.rs")) if "tests" not in (path.stem, *path.parts)]
    code = {
        str(path.relative_to(ROOT / "crates")): FOR_TESTS.sub("", path.read_text(encoding="utf-8")) for path in sources
    }
    variables = {name for text in code.values() for name in VARIABLE.findall(text)}
    tables = (("variables.md", variables - {"AIRDMA_LINK_PEER"}), ("counters.md", counters(code)))
    complaints = []
    for name, there in tables:
        page = DOCS / "reference" / name
        named = set(ROW.findall(pages[page]))
        complaints += [f"{_short(page)} lacks {missing}" for missing in sorted(there - named)]
        complaints += [f"{_short(page)} names {extra}, which the code lacks" for extra in sorted(named - there)]
    return complaints


def test_complaints(pages: dict[Path, str], words: set[str]) -> list[str]:
    """Tests that pages of docs name, against the words of the sources; benchmarks name symbols."""
    return [
        f"{_short(page)} names {name}, which no source has"
        for page, text in pages.items()
        if page.is_relative_to(DOCS) and "benchmarks" not in page.parts
        for name in sorted(set(TEST.findall(text)) - words)
    ]


def manual_complaints(header: str, manual: str) -> list[str]:
    """A manual page against its header: prototypes, members of structures, constants."""
    code = COMMENT.sub("", header)
    rendered = QUOTE.sub("", ROFF.sub("", manual))
    synopsis = COMMENT.sub("", rendered.partition(".SH SYNOPSIS")[2].partition(".SH DESCRIPTION")[0])
    declared, told = ({_squeezed(it) for it in PROTOTYPE.findall(text)} for text in (code, synopsis))
    complaints = [f"the manual page of records lacks `{it}`" for it in sorted(declared - told)]
    complaints += [f"the manual page of records has `{it}`, the header not" for it in sorted(told - declared)]
    members = COMMENT.sub("", rendered)
    for name, body in STRUCTURE.findall(code):
        if f"struct {name} {{ {_squeezed(body)} }};" not in _squeezed(members):
            complaints.append(f"the manual page of records has another `struct {name}` than the header")
    constants = set(re.findall(r"\bAIRDMA_\w+", code)) - {"AIRDMA_RECORD_WEAK", "AIRDMA_VERBS_RECORD_H"}
    named = set(re.findall(r"\bAIRDMA_\w+", manual))
    return complaints + [f"the manual page of records does not name {it}" for it in sorted(constants - named)]


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _words() -> set[str]:
    listing = ["git", "ls-files", "-z", "*.rs", "*.py", "*.c", "*.h", "*.txt"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    sources = (ROOT / file for file in files if file)
    return {
        word
        for source in sources
        if source.is_file()
        for word in re.findall(r"\w+_\w+", source.read_text(encoding="utf-8", errors="replace"))
    }


def counters(code: dict[str, str]) -> set[str]:
    """Names of all counters, as `airdma devices -v` shows them."""
    engine = code["engine/src/counter_names.rs"]
    names = set()
    for file in ("engine/src/counter_names.rs", "transport/src/counter.rs", "cm/src/counter.rs"):
        names |= set(re.findall(r'^    \w+ = "(\w+)",$', code[file], re.MULTILINE))
    renamed = dict(RENAMED.findall(engine))
    return names | {
        renamed.get(name, name) for name in re.findall(r"^    (\w+),$", code["port/src/counters.rs"], re.MULTILINE)
    }


def links(text: str) -> list[str]:
    """Where a page leads; what is code leads nowhere."""
    return LINK.findall(CODE.sub("", FENCED.sub("", text)))


def anchors(text: str) -> set[str]:
    """What headings are called in links: small letters, blanks as hyphens, without punctuation."""
    plain = FENCED.sub("", text)
    found: Counter[str] = Counter()
    names = set(ANCHOR.findall(plain))
    for heading in HEADING.findall(plain):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main())
