"""Makes the container image, without a daemon: an OCI layout in a tar file.

  python3 packaging/image.py [--built FOLDER] [--output FOLDER]

Prints the path: target/packages/airdma-VERSION-oci.tar by default. `docker load`, `podman load` and
`skopeo copy oci-archive:FILE ...` take it. The image has the programs and libraries of the
packages, the C library of the machine that makes it (a Debian) with its licence, and a user; no
shell. `packaging/Containerfile` makes a similar one from the package for Debian.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import platform
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deb
import libraries
import licences
import stage

USER, NUMBER = "airdma", 65532
"""The number that distroless images have for it."""
HOME = f"home/{USER}"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"


def main() -> int:
    parser = argparse.ArgumentParser(description="makes the container image")
    parser.add_argument("--built", type=Path, default=stage.BUILT)
    parser.add_argument("--output", type=Path, default=deb.OUTPUT)
    options = parser.parse_args()
    print(build(options.built, options.output))
    return 0


def build(built: Path, output: Path) -> Path:
    """Stages the tree, and packs it as one layer."""
    output.mkdir(parents=True, exist_ok=True)
    target = output / f"airdma-{stage.version()}-oci.tar"
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        tree(root, built)
        layer = packed(root)
    config = json_bytes(configuration(layer))
    blob = gzip.compress(layer, mtime=0)
    manifest = json_bytes(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": descriptor(CONFIG_TYPE, config),
            "layers": [descriptor(LAYER_TYPE, blob)],
        }
    )
    entry = descriptor(MANIFEST_TYPE, manifest)
    # podman takes the first as name and tag, containerd and Docker the second.
    name = f"airdma:{stage.version()}"
    entry["annotations"] = {
        "org.opencontainers.image.ref.name": name,
        "io.containerd.image.name": f"docker.io/library/{name}",
    }
    index = json_bytes({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]})
    files = {"oci-layout": json_bytes({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    files |= {f"blobs/sha256/{digest(one)}": one for one in (config, manifest, blob)}
    with tarfile.open(target, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(files.items()):
            information = tarfile.TarInfo(name)
            information.size, information.mode, information.mtime = len(content), 0o644, stage.epoch()
            archive.addfile(information, io.BytesIO(content))
    return target


def tree(root: Path, built: Path) -> None:
    """The root of the image."""
    stage.programs(root, built)
    copied = libraries.needed(stage.loaded(root))
    for library in copied:
        put_same(root, library, 0o755)
    documents = root / stage.layout("debian").documents
    stage.put(stage.SOURCE / "packaging/copyright", documents / "copyright")
    for package in libraries.packages(copied):
        put_same(root, package.copyright)
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in documents.parent.glob("*/copyright")]
    for licence in libraries.licences(texts):
        put_same(root, licence)
    stage.packed(licences.document(), documents / "THIRD-PARTY.gz")
    for name, line in (
        ("passwd", f"root:x:0:0:root:/root:/sbin/nologin\n{USER}:x:{NUMBER}:{NUMBER}::/{HOME}:/sbin/nologin\n"),
        ("group", f"root:x:0:\n{USER}:x:{NUMBER}:\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ):
        path = root / "etc" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(line, encoding="utf-8")
    for folder in (HOME, "tmp", "run", "proc", "sys", "dev"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    stage.settle(root)


def copied(built: Path) -> list[libraries.Package]:
    """The packages of the machine that the image has libraries of."""
    with tempfile.TemporaryDirectory() as scratch:
        stage.programs(Path(scratch), built)
        return libraries.packages(libraries.needed(stage.loaded(Path(scratch))))


def put_same(root: Path, path: Path, mode: int = 0o644) -> None:
    """Puts a file of the machine at the same path of the image."""
    stage.put(path, root / str(path).lstrip("/"), mode)


def packed(root: Path) -> bytes:
    """The layer, not compressed: the same bytes for the same tree."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=owned)
    return buffer.getvalue()


def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    is_users = entry.name == HOME
    entry.uid = entry.gid = NUMBER if is_users else 0
    entry.uname = entry.gname = ""
    entry.mtime = stage.epoch()
    if entry.name == "tmp":
        entry.mode = 0o1777
    return entry


def configuration(layer: bytes) -> dict[str, Any]:
    made = datetime.fromtimestamp(stage.epoch(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": made,
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": {
            "User": f"{NUMBER}:{NUMBER}",
            "Env": ["PATH=/usr/bin", f"HOME=/{HOME}"],
            "Entrypoint": ["/usr/bin/airdma"],
            "Cmd": ["--help"],
            "WorkingDir": f"/{HOME}",
            "ExposedPorts": {"4791/udp": {}},
            "Labels": {
                "org.opencontainers.image.title": "airdma",
                "org.opencontainers.image.version": stage.version(),
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}"]},
        "history": [{"created": made, "created_by": "packaging/image.py"}],
    }


def descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": f"sha256:{digest(content)}", "size": len(content)}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def json_bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


if __name__ == "__main__":
    sys.exit(main())
