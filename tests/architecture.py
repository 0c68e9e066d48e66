#!/usr/bin/env python3
"""Compares the maps with the tree.

ARCHITECTURE.md with the workspace: crates in its picture, dependencies, crates free of unsafe code;
ARCHITECTURE.md and CONTRIBUTING.md with the files and functions that they name;
docs/design/011-concurrency.md with what threads share; the rooms of the engine: no import circle;
and all files: no stray paths.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("crates", "testing", "bench")
PREFIX = "airdma-"
NORTH = "airdma"
"""The crate whose name has nothing behind the prefix."""
ONLY_FOR_TESTS = {"sim", "captures", "lab"}
"""Crates that any other may use in its tests."""

FORBIDS_UNSAFE = ("wire", "transport", "cm", "sim", "model", "captures", "files", "transfer", "stream")

# Paths of the machines that this project was written on mean nothing to a reader. The first letter
# in brackets keeps this list from finding itself.
STRAY = re.compile(r"[/]work/|\.\.[/]shared|[/]root/|[/]home/\w+/|[/]tmp/(?:wt|target)-|\.[l]ibrary/")

MAPS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
"""Pages whose file names, and whose functions in tables of stations, must be in the tree."""
CODE = re.compile(r"`([^`\n]+)`")
NAMED_FILE = re.compile(r"[\w.*-][\w.*/-]*\.(?:rs|py|md|json|toml|lua|svg|sh|c|h|pyi|ya?ml)")
DEFINED = re.compile(r"`(\w+)` in `([\w./-]+\.rs)`")
"""An item and the file that defines it, in a sentence."""
STATIONS = re.compile(r"\|\s*station\s*\|\s*file\s*\|\s*function\s*\|")

SHARED = ROOT / "docs" / "design" / "011-concurrency.md"
ATOMIC = r"(?:Atomic(?:Bool|Ptr|[IU](?:8|16|32|64|size))|\bWord)\b"
FIELD = re.compile(rf"^ *(?:pub(?:\(\w+\))? )?(?:static )?(?:shared!\()?(\w+): [^=\n;(]*{ATOMIC}", re.MULTILINE)
TUPLE = re.compile(rf"struct (\w+)\([^)]*{ATOMIC}")
TESTS = re.compile(r"#\[cfg\((?:test|all\(test, not\(loom\)\))\)\]\nmod tests \{")

ENVIRONMENT = "crates/engine/src/environment.rs"
WITHOUT_ENVIRONMENT = ("cm", "engine", "port", "shm", "transport", "wire")
READS_ENVIRONMENT = re.compile(r"\benv::(?:var|vars|var_os|vars_os)\b|\b(?:secure_)?getenv\b")


def main() -> int:
    complaints = [
        *dependency_complaints(_metadata(), _table()),
        *unsafe_complaints(),
        *stray_complaints(),
        *shared_complaints(),
        *circle_complaints(room_imports(_engine_sources())),
        *map_complaints(),
        *environment_complaints(),
    ]
    for complaint in complaints:
        print(f"architecture: {complaint}")
    print(f"architecture: {'FAILED' if complaints else 'ok'}")
    return 1 if complaints else 0


def dependency_complaints(metadata: dict[str, Any], allowed: dict[str, set[str]]) -> list[str]:
    """What `cargo metadata` says against the table: crate -> crates it may depend on."""
    complaints = []
    found = {_short(package["name"]): package["dependencies"] for package in metadata["packages"]}
    for crate, dependencies in sorted(found.items()):
        if crate not in allowed:
            complaints.append(f"crate {crate} is missing from the table in ARCHITECTURE.md")
            continue
        for dependency in dependencies:
            name = _short(dependency["name"])
            extra = ONLY_FOR_TESTS if dependency["kind"] == "dev" else set()
            is_ours = dependency["name"].startswith(PREFIX) or dependency["name"] == NORTH
            if is_ours and name not in allowed[crate] | extra:
                complaints.append(f"{crate} may not depend on {name} ({dependency['kind'] or 'normal'} dependency)")
    complaints += [f"the table names {crate}, which does not exist" for crate in sorted(allowed.keys() - found.keys())]
    return complaints


def parse_table(markdown: str) -> dict[str, set[str]]:
    """The rows below "| crate | may depend on |"."""
    allowed: dict[str, set[str]] = {}
    lines = iter(markdown.splitlines())
    for line in lines:
        if re.fullmatch(r"\|\s*crate\s*\|\s*may depend on\s*\|", line.strip()):
            break
    for line in lines:
        if not line.startswith("|"):
            break
        crate, may = (cell.strip() for cell in line.strip().strip("|").split("|"))
        if not set(crate) <= {"-", ":"}:
            allowed[crate] = {name.strip() for name in may.split(",") if name.strip()}
    return allowed


def unsafe_complaints() -> list[str]:
    """Crates that promise to contain no unsafe code must make the compiler enforce it."""
    sources = {crate: next(ROOT.glob(f"*/{crate}/src/lib.rs")) for crate in FORBIDS_UNSAFE}
    return [
        f"crate {crate} lacks #![forbid(unsafe_code)]"
        for crate, source in sources.items()
        if "#![forbid(unsafe_code)]" not in source.read_text(encoding="utf-8")
    ]


def map_complaints() -> list[str]:
    """Files and functions that the maps name and the tree lacks; crates outside the picture."""
    files = [file for file in _files() if (ROOT / file).is_file()]
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in MAPS}
    complaints = [complaint for name, text in pages.items() for complaint in path_complaints(name, text, files)]
    tracked = set(files)

    def source(file: str) -> str:
        return (ROOT / file).read_text(encoding="utf-8") if file in tracked else ""

    for name, text in pages.items():
        complaints += station_complaints(name, text, source) + item_complaints(name, text, source)
    return complaints + picture_complaints(pages["ARCHITECTURE.md"], _table().keys())


def path_complaints(page: str, markdown: str, files: list[str]) -> list[str]:
    """Names of files and folders in code spans, from the root or `_near` the one before them."""
    tree = {*files, *(str(parent) for file in files for parent in Path(file).parents)}
    top = {file.split("/")[0] for file in files if "/" in file}
    complaints = []
    for line in markdown.splitlines():
        before = ""
        for word in (word.strip("\"'()[],:;") for code in CODE.findall(line) for word in code.split()):
            name = word.rstrip("/")
            if "/" in word and name.split("/")[0] in top:
                found = _there(name, tree)
                before = name if found else before
            elif NAMED_FILE.fullmatch(name):
                found = any(_there(str(folder / name), tree) for folder in _near(before))
            else:
                continue
            complaints += [] if found else [f"{page} names {word}, which is not in the tree"]
    return complaints


def _near(path: str) -> tuple[Path, ...]:
    """Where a name after `path` may be: beside it, in it, in its module's folder, at the root."""
    return Path(path).parent, Path(path), Path(path).with_suffix("") if path else Path(), Path()


def _there(name: str, tree: set[str]) -> bool:
    return any(fnmatchcase(path, name) for path in tree) if "*" in name else name in tree


def station_complaints(page: str, markdown: str, source: Callable[[str], str]) -> list[str]:
    """Tables of stations: each function is defined in the file of its row."""
    complaints, inside = [], False
    for line in markdown.splitlines():
        inside = line.startswith("|") and (inside or bool(STATIONS.fullmatch(line.strip())))
        cells = line.strip().strip("|").split("|")
        if inside and len(cells) == 3:
            sources = [source(file) for file in _named(cells[1])]
            for function in CODE.findall(cells[2]):
                name = function.rsplit("::", 1)[-1]
                if not any(re.search(rf"\bfn {re.escape(name)}\b", text) for text in sources):
                    complaints.append(f"{page}: {function} is not defined in{cells[1].rstrip()}")
    return complaints


def _named(cell: str) -> list[str]:
    """The files of a cell; a bare name is beside the one before it."""
    files: list[str] = []
    for name in CODE.findall(cell):
        files.append(name if "/" in name or not files else str(Path(files[-1]).parent / name))
    return files


def item_complaints(page: str, markdown: str, source: Callable[[str], str]) -> list[str]:
    """Sentences that name an item in a file: the file defines it."""
    return [
        f"{page}: {item} is not defined in {file}"
        for item, file in DEFINED.findall(markdown)
        if not re.search(rf"\b(?:fn|struct|enum|trait|type|const) {item}\b", source(file))
    ]


def picture_complaints(markdown: str, crates: Iterable[str]) -> list[str]:
    """The first block of code is the picture, in which each crate of the table has its place."""
    block = re.search(r"^```\w*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    words = set(re.findall(r"[\w-]+", block[1])) if block else set()
    return [f"the picture in ARCHITECTURE.md lacks crate {crate}" for crate in sorted(set(crates) - words)]


def stray_complaints() -> list[str]:
    """No file of the project names a path of the machine it was written on."""
    complaints = []
    for file in _files():
        path = ROOT / file
        if path.is_file():
            found = STRAY.search(path.read_text(encoding="utf-8", errors="ignore"))
            complaints += [f"{file} contains {found.group()!r}"] if found else []
    return complaints


def shared_complaints() -> list[str]:
    """Atomics that are missing from the table of shared state (`fuzz-bodies` is a test)."""
    named = shared_names(SHARED.read_text(encoding="utf-8"))
    complaints = []
    sources = (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*/src/**/*.rs"))
    for path in sorted(sources):
        if "tests" not in (path.stem, *path.parts) and "fuzz-bodies" not in path.parts:
            missing = sorted(atomics(path.read_text(encoding="utf-8")) - named)
            complaints += [f"{path.relative_to(ROOT)}: `{name}` is not in {SHARED.name}" for name in missing]
    return complaints


def environment_complaints() -> list[str]:
    """One file of the engine and the crates below it reads the environment."""
    complaints = []
    for crate in WITHOUT_ENVIRONMENT:
        for path in sorted((ROOT / "crates" / crate / "src").rglob("*.rs")):
            file = path.relative_to(ROOT).as_posix()
            if "tests" not in (path.stem, *path.parts) and file != ENVIRONMENT:
                found = READS_ENVIRONMENT.search(TESTS.split(path.read_text(encoding="utf-8"))[0])
                if found:
                    complaints.append(f"{file} reads the environment ({found.group()}), which {ENVIRONMENT} does")
    return complaints


def atomics(source: str) -> set[str]:
    """Fields, statics and tuple structs of a Rust source that hold atomics, tests excepted."""
    source = TESTS.split(source)[0]
    return {*FIELD.findall(source), *TUPLE.findall(source)} - {"_pad"}


def shared_names(markdown: str) -> set[str]:
    """The words in code below "## What is shared"."""
    table = markdown.partition("## What is shared")[2].partition("\n## ")[0]
    return {word for code in re.findall(r"`([^`]+)`", table) for word in re.findall(r"\w+", code)}


def room_imports(sources: dict[str, str]) -> dict[str, dict[str, str]]:
    """Rooms that each room imports, and a file that does; `sources` by their paths below `src`.

    A room is a folder with the file of its name, or any other file. Names that `lib.rs` re-exports
    count as names of the room that they come from. Tests are left out.
    """
    exported: dict[str, str] = {}
    for room, names in re.findall(r"^pub use (\w+)::([^;]+);", sources.get("lib.rs", ""), re.MULTILINE):
        exported |= dict.fromkeys(re.findall(r"\b(\w+)(?=\s*[,}]|$)", names), room)
    rooms = {path.partition("/")[0].removesuffix(".rs") for path in sources} - {"lib"}
    imports: dict[str, dict[str, str]] = {room: {} for room in rooms}
    for path, source in sorted(sources.items()):
        room = path.partition("/")[0].removesuffix(".rs")
        if room == "lib" or "tests" in re.split(r"[/.]", path):
            continue
        code = re.sub(r"//.*", "", TESTS.split(source)[0])
        names = re.findall(r"\bcrate::(\w+)", code)
        for group in re.findall(r"\bcrate::\{([^;]*)\};", code):
            names += re.findall(r"(?:^|,)\s*(\w+)", re.sub(r"\{[^}]*\}", "", group))
        for name in names:
            target = exported.get(name, name)
            if target in rooms and target != room:
                imports[room].setdefault(target, path)
    return imports


def circle_complaints(imports: dict[str, dict[str, str]]) -> list[str]:
    """Rooms of the engine that import each other, over however many others."""

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            for room in imports[ahead.pop()]:
                if room not in seen:
                    seen.add(room)
                    ahead.append(room)
        return seen

    reached = {room: reach(room) for room in imports}
    return [
        f"engine: `{room}` imports `{other}` ({path}), which imports `{room}` in turn"
        for room, others in sorted(imports.items())
        for other, path in sorted(others.items())
        if room in reached[other]
    ]


def _engine_sources() -> dict[str, str]:
    root = ROOT / "crates" / "engine" / "src"
    return {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in root.rglob("*.rs")}


def _files() -> list[str]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [file for file in files if file]


def _metadata() -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    metadata: dict[str, Any] = json.loads(output)
    return metadata


def _table() -> dict[str, set[str]]:
    return parse_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)


if __name__ == "__main__":
    sys.exit(main())
