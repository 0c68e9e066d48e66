"""The container image: its files, its size, and what it does without root."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import image
import sbom
import stage
from said import Failure, need, said

MIB_MAX = 40
SCRIPT = """
set -eu
root=$1
ip link set lo up
mount --rbind /proc "$root/proc"
airdma() {
    env -i HOME=/home/airdma PATH=/usr/bin AIRDMA_LOOPBACK=1 \
        unshare --user --map-user=65532 --map-group=65532 --root="$root" /usr/bin/airdma "$@"
}
airdma --version
airdma devices
airdma run --explain -- /usr/bin/airdma
mkdir "$root/tmp/arrived"
airdma recv --yes --no-name --code lusab-babad /tmp/arrived > /dev/null &
for _ in $(seq 200); do
    grep -qE "^[ 0-9]+: [0-9A-F:]+:12B7 " /proc/net/udp /proc/net/udp6 && break
    sleep 0.05
done
airdma send --code lusab-babad /usr/share/doc/airdma/copyright 127.0.0.1
wait
cmp "$root/usr/share/doc/airdma/copyright" "$root/tmp/arrived/copyright"
"""
"""Runs as root of a user namespace; the programs of the image run as its user."""


def check(built: Path) -> str:
    """Its parts fit each other, it is small, and a file is sent from one to another of its user."""
    need("dpkg-query", "dpkg")
    with tempfile.TemporaryDirectory() as scratch:
        file = image.build(built, Path(scratch))
        size = file.stat().st_size / 2**20
        root = Path(scratch) / "root"
        configuration = unpack(file, root)
        if configuration["config"]["User"] != "65532:65532":
            raise Failure(f"it runs as {configuration['config']['User']}")
        called = loaded(file, Path(scratch) / "podman")
        links = [path for path in root.rglob("*") if path.is_symlink() and not path.exists()]
        if links:
            raise Failure(f"links that lead nowhere: {links}")
        has_licences(root, built)
        unpacked = sum(path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink())
        output = ran(root)
    if size > MIB_MAX:
        raise Failure(f"{size:.1f} MiB, at most {MIB_MAX} are expected")
    return f" {size:.1f} MiB, {unpacked / 2**20:.1f} MiB unpacked, {output.splitlines()[0]}{called}"


def loaded(file: Path, folder: Path) -> str:
    """Podman, where it is there, takes the image by its name and version."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        return ""
    podman = ["podman", "--root", str(folder / "images"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    said([*podman, "load", "--input", file])
    names = said([*podman, "images", "--format", "{{.Repository}}:{{.Tag}}"]).split()
    if [name.rpartition("/")[2] for name in names] != [f"airdma:{stage.version()}"]:
        raise Failure(f"podman calls it {names}")
    return f", {names[0]} by podman"


def has_licences(root: Path, built: Path) -> None:
    """What is copied from Debian has its licences in the image and in the bill of materials."""
    documents = root / "usr/share/doc"
    texts = {path.parent.name: path.read_text(encoding="utf-8") for path in documents.glob("*/copyright")}
    bill = {entry["name"]: entry for entry in sbom.document(stage.version(), image.copied(built))["components"]}
    for package in ("libc6", "libgcc-s1"):
        if package not in texts:
            raise Failure(f"the image has no licence of {package}: {sorted(texts)}")
        (licence,) = bill[package]["licenses"]
        if licence["license"]["text"]["content"] != texts[package] or not bill[package]["version"]:
            raise Failure(f"the bill of materials has no licence of {package}")
    reference = r"/usr/share/common-licenses/([A-Za-z]+-\d+(?:\.\d+)*)"
    named = {name for text in texts.values() for name in re.findall(reference, text)}
    absent = [name for name in sorted(named) if not (root / "usr/share/common-licenses" / name).is_file()]
    if absent or not named:
        raise Failure(f"licences that are named and absent: {absent}")


def unpack(file: Path, root: Path) -> dict[str, Any]:
    """Unpacks all layers, each of which is what its digest says; returns the configuration."""
    with tarfile.open(file) as archive:
        names = archive.getnames()

        def content(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None, name
            return member.read()

        def blob(described: dict[str, Any]) -> bytes:
            found = content(f"blobs/{described['digest'].replace(':', '/')}")
            if f"sha256:{hashlib.sha256(found).hexdigest()}" != described["digest"] or len(found) != described["size"]:
                raise Failure(f"{described} is not what it says")
            return found

        if json.loads(content("oci-layout")) != {"imageLayoutVersion": "1.0.0"}:
            raise Failure(f"no OCI layout: {names}")
        (entry,) = json.loads(content("index.json"))["manifests"]
        manifest = json.loads(blob(entry))
        configuration = dict(json.loads(blob(manifest["config"])))
        layers = [blob(layer) for layer in manifest["layers"]]
    root.mkdir()
    for layer, named in zip(layers, configuration["rootfs"]["diff_ids"], strict=True):
        # Files belong to the user of this test, who has the number of the image's user inside.
        tar = ["tar", "--extract", "--gzip", "--file=-", "--no-same-owner", "--preserve-permissions"]
        subprocess.run([*tar, f"--directory={root}"], input=layer, check=True)
        if named != f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}":
            raise Failure("a layer is not the one of the configuration")
    return configuration


def ran(root: Path) -> str:
    """What its programs say."""
    need("unshare", "util-linux")
    need("ip", "iproute2")
    command = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child"]
    return said([*command, "sh", "-c", SCRIPT, "sh", root], dict(os.environ))
