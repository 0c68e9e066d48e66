"""The tree of an installed airdma: the one list of files of all packages.

  python3 packaging/stage.py ROOT [--built FOLDER] [--layout debian|fedora]

ROOT stands for the root of the host: ROOT/usr/bin/airdma. FOLDER holds what was built
(`make build dropin`), target/release by default.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import licences
import manuals

SOURCE = Path(__file__).resolve().parents[1]
BUILT = SOURCE / "target/release"
PRIVATE = "usr/lib/airdma"
"""Where `airdma` finds its libraries, relative to usr/bin, on every distribution."""
DROP_IN_LINKS = ("libibverbs.so", "librdmacm.so.1", "librdmacm.so")


@dataclass(frozen=True)
class Layout:
    """Where distributions differ."""

    libraries: str
    zsh: str
    documents: str


def layout(name: str) -> Layout:
    machine = platform.machine()
    if name == "debian":
        return Layout(f"lib/{machine}-linux-gnu", "usr/share/zsh/vendor-completions", "usr/share/doc/airdma")
    return Layout("lib64", "usr/share/zsh/site-functions", "usr/share/doc/airdma")


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the tree of an installed airdma")
    parser.add_argument("root", type=Path)
    parser.add_argument("--built", type=Path, default=BUILT)
    parser.add_argument("--layout", choices=["debian", "fedora"], default="debian")
    options = parser.parse_args()
    stage(options.root, options.built, layout(options.layout))
    return 0


def version() -> str:
    """The version of the workspace."""
    manifest = tomllib.loads((SOURCE / "Cargo.toml").read_text(encoding="utf-8"))
    return str(manifest["workspace"]["package"]["version"])


def epoch() -> int:
    """Time stamp of all files, so that two builds are the same: that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout)


def stage(root: Path, built: Path, where: Layout) -> None:
    """Makes the tree; an older one in its place is removed."""
    if root.exists():
        shutil.rmtree(root)
    programs(root, built)
    c_library(root, built, where)
    service(root)
    pages(root, built, where)
    documents(root, where)
    settle(root)


def programs(root: Path, built: Path) -> None:
    put(built / "airdma", root / "usr/bin/airdma", 0o755)
    for library in ("libairdma.so", "libairdma_sockets.so", "dropin/libibverbs.so.1"):
        put(built / library, root / PRIVATE / library, 0o644)
    strip(*loaded(root))
    for name in DROP_IN_LINKS:
        (root / PRIVATE / "dropin" / name).symlink_to("libibverbs.so.1")


def loaded(root: Path) -> list[Path]:
    """The programs and libraries of `programs`, which load those of the machine."""
    return [root / "usr/bin/airdma", *sorted((root / PRIVATE).rglob("*.so*"))]


def c_library(root: Path, built: Path, where: Layout) -> None:
    """The north API for C, and the header of Write-Record for verbs programs."""
    environment = {**os.environ, "DESTDIR": str(root), "LIBDIR": where.libraries}
    install = SOURCE / "crates/airdma-c/install.sh"
    subprocess.run([install, "/usr", built], env=environment, check=True)
    folder = root / "usr" / where.libraries
    # A fault of a static library stays in the programs that have it: install.sh has one for those.
    (folder / "libairdma_north.a").unlink()
    library = folder / "libairdma_north.so.0"
    library.chmod(0o644)
    strip(library)
    put(SOURCE / "crates/verbs/include/airdma/verbs_record.h", root / "usr/include/airdma/verbs_record.h")


def service(root: Path) -> None:
    here = SOURCE / "packaging"
    for manager in ("system", "user"):
        unit = here / "systemd" / ("" if manager == "system" else manager) / "airdma-serve.service"
        put(unit, root / "usr/lib/systemd" / manager / unit.name)
    put(here / "sysusers.d/airdma.conf", root / "usr/lib/sysusers.d/airdma.conf")
    put(here / "sysctl.d/10-airdma.conf", root / "usr/lib/sysctl.d/10-airdma.conf")


def pages(root: Path, built: Path, where: Layout) -> None:
    """Manual pages, and completions of shells."""
    made = root / "made"
    subprocess.run([built / "airdma", "generate", made], check=True)
    with (made / "man1/airdma.1").open("a", encoding="utf-8") as page:
        page.write((SOURCE / "packaging/man/airdma.1").read_text(encoding="utf-8"))
    manual = root / "usr/share/man"
    texts = {
        page.name: page.read_text(encoding="utf-8")
        for page in [*(made / "man1").iterdir(), SOURCE / "crates/verbs/man/airdma_record.3"]
    }
    variables = (SOURCE / "docs/reference/variables.md").read_text(encoding="utf-8")
    header = (SOURCE / "crates/airdma-c/include/airdma.h").read_text(encoding="utf-8")
    texts |= {"airdma-env.7": manuals.environment(variables), "libairdma.3": manuals.library(header)}
    for name, text in texts.items():
        packed(text, manual / f"man{name[-1]}" / f"{name}.gz")
    for name, target in (
        ("airdma.bash", "usr/share/bash-completion/completions/airdma"),
        ("_airdma", f"{where.zsh}/_airdma"),
        ("airdma.fish", "usr/share/fish/vendor_completions.d/airdma.fish"),
    ):
        put(made / "completions" / name, root / target)
    shutil.rmtree(made)


def documents(root: Path, where: Layout) -> None:
    folder = root / where.documents
    packed((SOURCE / "CHANGELOG.md").read_text(encoding="utf-8"), folder / "changelog.gz")
    put(SOURCE / "packaging/copyright", folder / "copyright")
    packed(licences.document(), folder / "THIRD-PARTY.gz")
    for example in sorted((SOURCE / "crates/airdma-c/examples").iterdir()):
        put(example, folder / "examples" / example.name)
    put(SOURCE / "tools/wireshark/airdma.lua", root / "usr/share/airdma/airdma.lua")
    put(SOURCE / "packaging/grafana/airdma.json", root / "usr/share/airdma/grafana.json")


def put(source: Path, target: Path, mode: int = 0o644) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def packed(text: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    target.chmod(0o644)


def strip(*files: Path) -> None:
    subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", *files], check=True)


def settle(root: Path) -> None:
    """Modes, and one time stamp for everything, whatever the umask and the clock are."""
    stamp = epoch()
    for path in [root, *root.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (stamp, stamp), follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
