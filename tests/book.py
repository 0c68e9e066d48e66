#!/usr/bin/env python3
"""The book (docs/SUMMARY.md, `mdbook build docs`): every page of docs is in it, once; and no link in a page of this repository leads
nowhere."""

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
ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


def main() -> int:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.md"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    pages = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in names if name and (ROOT / name).is_file()}
    complaints = [*missing_complaints(pages), *link_complaints(pages)]
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
    return complaints + [f"docs/SUMMARY.md names {_short(page)} {count} times" for page, count in named.items() if count > 1]


def link_complaints(pages: dict[Path, str]) -> list[str]:
    """Relative links to files that are not there, or not in the book, or to headings that are not in them."""
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
