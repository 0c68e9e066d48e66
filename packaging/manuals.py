"""Manual pages from what documents the same already: airdma-env(7) from
docs/reference/variables.md, libairdma(3) from airdma.h.

The pages of commands are clap's (`airdma generate`), with the sections of packaging/man/airdma.1
behind those of airdma(1).
"""

from __future__ import annotations

import re

LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]+\)")
ASIDE = re.compile(r" \(\[[^\]]*\]\([^)\s]+\)\)")
"""A link in brackets, which leads to more and says nothing itself."""
CODE = re.compile(r"`([^`\n]*)`")
COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)
SECTION = re.compile(r"/\* ---- (.*?) ---- \*/")


def environment(page: str) -> str:
    """airdma-env(7): each table is a section, each row an entry with its cells behind."""
    lines = page.splitlines()
    body = ['.TH airdma\\-env 7 "" airdma "Variables"', ".SH NAME", "airdma\\-env \\- variables that airdma reads"]
    body.append(".SH DESCRIPTION")
    titles: list[str] = []
    for line in lines[1:]:
        if line.startswith("## "):
            titles = []
            body.append(f".SH {_text(line[3:]).upper()}")
        elif line.startswith("| ---"):
            continue
        elif line.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            if titles:
                body += _entry(titles, cells)
            else:
                titles = cells
        elif not line:
            titles = []
            body.append(".PP")
        else:
            body.append(_guarded(_text(line)))
    return _joined([*body, ".SH SEE ALSO", ".BR airdma (1)"])


def library(header: str) -> str:
    """libairdma(3): the comments and declarations of the header in their order."""
    opening, _, code = header.partition("#ifndef AIRDMA_H")
    code = code.partition('extern "C" {\n#endif\n')[2].partition("#ifdef __cplusplus")[0]
    body = ['.TH libairdma 3 "" airdma "RDMA for applications"', ".SH NAME"]
    body.append("libairdma \\- connections, messages, and memory that peers read and write")
    body += [".SH SYNOPSIS", ".nf", ".B #include <airdma.h>", ".PP"]
    body += [".B cc $(pkg\\-config \\-\\-cflags airdma) PROGRAM.c $(pkg\\-config \\-\\-libs airdma)", ".fi"]
    body += [".SH DESCRIPTION", *_prose(opening)]
    title, *rest = SECTION.split(code)
    sections = [("Types", title), *zip(rest[::2], rest[1::2], strict=True)]
    for name, text in sections:
        body.append(f".SS {_text(name)}")
        at = 0
        for comment in COMMENT.finditer(text):
            # A comment behind a declaration, in its line, is part of it.
            if text[: comment.start()].rpartition("\n")[2].strip():
                continue
            body += [*_declared(text[at : comment.start()]), ".PP", *_prose(comment[0])]
            at = comment.end()
        body += _declared(text[at:])
    return _joined([*body, ".SH SEE ALSO", ".BR airdma (1),", ".BR airdma\\-env (7)"])


def _entry(titles: list[str], cells: list[str]) -> list[str]:
    name, effect, *others = cells
    lines = [".TP", f".B {_text(name)}", _guarded(_text(effect)) + "."]
    for title, cell in zip(titles[2:], others, strict=True):
        if cell:
            lines += [".br", _guarded(f"{_text(title[:1].upper() + title[1:])}: {_text(cell)}.")]
    return lines


def _declared(text: str) -> list[str]:
    lines = [_guarded(_escaped(line)) for line in text.strip("\n").splitlines()]
    return [".PP", ".RS 4", ".nf", *lines, ".fi", ".RE"] if any(lines) else []


def _prose(comment: str) -> list[str]:
    """Paragraphs of a comment; indented lines stay as they are."""
    lines = [
        re.sub(r"^ ?\*? ?", "", line) for line in comment.strip().removeprefix("/*").removesuffix("*/").splitlines()
    ]
    body: list[str] = []
    for line in lines:
        if not line.strip():
            body.append(".PP")
        elif line.startswith("  "):
            body += [".br", _guarded(_escaped(line.strip()))]
        else:
            body.append(_guarded(_escaped(line.strip())))
    return body


def _text(line: str) -> str:
    """Markdown's marks as roff's."""
    parts = CODE.split(LINK.sub(r"\1", ASIDE.sub("", line)))
    marked = (f"\\fB{_escaped(part)}\\fR" if index % 2 else _escaped(part) for index, part in enumerate(parts))
    return "".join(marked).replace("*", "").strip()


def _escaped(text: str) -> str:
    return text.replace("\\|", "|").replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha")


def _guarded(line: str) -> str:
    """A line that begins with a full stop or an apostrophe would be a request to roff."""
    return f"\\&{line}" if line.startswith((".", "'")) else line


def _joined(lines: list[str]) -> str:
    kept: list[str] = []
    for line in lines:
        # No paragraph begins right behind a heading or another paragraph's mark.
        if line == ".PP" and (not kept or kept[-1].startswith((".SH", ".SS", ".PP"))):
            continue
        while kept and kept[-1] == ".PP" and line.startswith((".SH", ".SS", ".TP", ".PP")):
            kept.pop()
        kept.append(line)
    return "\n".join(kept) + "\n"
