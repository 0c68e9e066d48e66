"""Makes the package for Debian and Ubuntu, by dpkg's own tools.

  python3 packaging/deb.py [--built FOLDER] [--output FOLDER]

Prints the path of the package: target/packages/airdma_VERSION-1_ARCHITECTURE.deb by default.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from email.utils import formatdate
from pathlib import Path

import stage

OUTPUT = stage.SOURCE / "target/packages"
SCRIPTS = ("postinst", "prerm", "postrm")
ELF = b"\x7fELF"

MAINTAINER = "The airdma contributors <airdma@localhost>"
CHANGELOG = """\
airdma ({version}) unstable; urgency=medium

  * Release {upstream}: changelog.gz has what is new.

 -- {maintainer}  {date}
"""
DESCRIPTION = """\
A RoCEv2 stack that turns Ethernet, Wi-Fi or a container's veth into a verbs
device. Unmodified programs for libibverbs and librdmacm run on it without an
RDMA NIC and without a kernel module: "airdma run -- CMD".

With it come encrypted and resumable transfers of files, an emulated Wi-Fi
link, and a library for C programs that know nothing of verbs."""

CONTROL = """\
Package: airdma
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Depends: {depends}
Suggests: ibverbs-utils, perftest
Section: net
Priority: optional
Description: RDMA device on every ordinary network interface, in user space
{description}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the package for Debian and Ubuntu")
    parser.add_argument("--built", type=Path, default=stage.BUILT)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    print(build(options.built, options.output))
    return 0


def build(built: Path, output: Path, compression: str = "xz") -> Path:
    """Stages the tree, describes it, packs it."""
    root = output.resolve() / "deb"
    stage.stage(root, built, stage.layout("debian"))
    stage.put(
        stage.SOURCE / "packaging/deb/lintian-overrides",
        root / "usr/share/lintian/overrides/airdma",
    )
    architecture = said("dpkg", "--print-architecture").strip()
    version = f"{stage.version()}-1"
    date = formatdate(stage.epoch(), localtime=False, usegmt=False)
    changes = CHANGELOG.format(version=version, upstream=stage.version(), maintainer=MAINTAINER, date=date)
    stage.packed(changes, root / "usr/share/doc/airdma/changelog.Debian.gz")
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    control = CONTROL.format(
        version=version,
        maintainer=MAINTAINER,
        architecture=architecture,
        kibibytes=sum(-(-path.stat().st_size // 1024) for path in files),
        depends=depends(files),
        description="\n".join(f" {line or '.'}" for line in DESCRIPTION.splitlines()),
    )
    description = root / "DEBIAN"
    description.mkdir()
    (description / "control").write_text(control, encoding="utf-8")
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]
    (description / "md5sums").write_text("".join(sums), encoding="utf-8")
    (description / "triggers").write_text("activate-noawait ldconfig\n", encoding="utf-8")
    library = next(path for path in files if path.name.startswith("libairdma_north.so."))
    number = library.name.rpartition(".")[2]
    (description / "shlibs").write_text(f"libairdma_north {number} airdma (>= {version})\n", encoding="utf-8")
    for path in description.iterdir():
        path.chmod(0o644)
    for script in SCRIPTS:
        stage.put(stage.SOURCE / "packaging/deb" / script, description / script, 0o755)
    stage.settle(root)
    package = output.resolve() / f"airdma_{version}_{architecture}.deb"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(stage.epoch())}
    command = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", str(root), str(package)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return package


def depends(files: list[Path]) -> str:
    """The packages whose libraries the binaries need, in the versions that have their symbols."""
    binaries = [str(path) for path in files if path.open("rb").read(4) == ELF]
    with tempfile.TemporaryDirectory() as scratch:
        # It reads the name of the package from there.
        (Path(scratch) / "debian").mkdir()
        (Path(scratch) / "debian/control").write_text(
            "Source: airdma\n\nPackage: airdma\nArchitecture: any\n", encoding="utf-8"
        )
        words = [f"-e{path}" for path in binaries]
        command = ["dpkg-shlibdeps", "-O", "--ignore-missing-info", *words]
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    found = re.search(r"^shlibs:Depends=(.*)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or found is None:
        sys.exit(f"packaging/deb.py: dpkg-shlibdeps (package dpkg-dev) failed:\n{done.stderr}")
    return found[1]


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
