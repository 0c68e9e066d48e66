"""Makes the package for Fedora and its relatives, by rpmbuild.

  python3 packaging/rpm.py [--built FOLDER] [--output FOLDER]

Prints the path of the package: target/packages/airdma-VERSION-1.ARCHITECTURE.rpm by default.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import deb
import stage

SPEC = """\
# The binaries are stripped, and the pages packed, by packaging/stage.py.
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
# Neither the preload nor the drop-in stands for rdma-core to other packages.
%global __provides_exclude_from ^/usr/lib/airdma/.*$
# Only those who compile need it.
%global __requires_exclude ^/usr/bin/pkg-config$
# Two builds are the same.
%global source_date_epoch_from_changelog 0
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost airdma

Name: airdma
Version: {version}
Release: 1
Summary: RDMA device on every ordinary network interface, in user space
License: MIT OR Apache-2.0

%description
{description}

%post
if command -v systemd-sysusers >/dev/null; then systemd-sysusers airdma.conf; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl try-restart airdma-serve.service; fi
/sbin/ldconfig

%preun
if [ "$1" = 0 ] && [ -d /run/systemd/system ]; then systemctl disable --now airdma-serve.service; fi

%postun
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
/sbin/ldconfig

%files
%defattr(-,root,root,-)
{files}
"""
OWN = ("usr/lib/airdma", "usr/share/airdma", "usr/share/doc/airdma", "usr/include/airdma")
"""Folders that belong to no other package."""


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the package for Fedora and its relatives")
    parser.add_argument("--built", type=Path, default=stage.BUILT)
    parser.add_argument("--output", type=Path, default=deb.OUTPUT)
    options = parser.parse_args()
    print(build(options.built, options.output))
    return 0


def build(built: Path, output: Path, payload: str = "w6.xzdio") -> Path:
    """Stages the tree, describes it, packs it."""
    root = output.resolve() / "rpm"
    stage.stage(root, built, stage.layout("fedora"))
    version = stage.version()
    spec = SPEC.format(version=version, description=deb.DESCRIPTION, files="\n".join(listed(root)))
    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / "airdma.spec"
        described.write_text(spec, encoding="utf-8")
        # It empties the folder that it packs from.
        buildroot = Path(scratch) / "root"
        root.rename(buildroot)
        command = ["rpmbuild", "-bb", "--noclean", "--buildroot", str(buildroot), "--define", f"_topdir {scratch}"]
        command += ["--define", f"_binary_payload {payload}", str(described)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(stage.epoch())}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"packaging/rpm.py: rpmbuild failed:\n{done.stdout}{done.stderr}")
        made = next((Path(scratch) / "RPMS").rglob("*.rpm"))
        package = output.resolve() / f"airdma-{version}-1.{platform.machine()}.rpm"
        package.write_bytes(made.read_bytes())
    return package


def listed(root: Path) -> list[str]:
    """The files of the tree, and the folders that are the package's own."""
    names = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not path.is_dir():
            names.append(f"/{name}")
        elif name.startswith(OWN):
            names.append(f"%dir /{name}")
    return names


if __name__ == "__main__":
    sys.exit(main())
