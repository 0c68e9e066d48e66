"""The bill of materials of the packages, as CycloneDX: each crate that is compiled into them, with
its version, licence and the checksum of Cargo.lock, and what the container image copies beside them.
"""

from __future__ import annotations

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import libraries

SOURCE = Path(__file__).resolve().parents[1]
SHIPPED = ("airdma-cli", "airdma-verbs", "airdma-sockets", "airdma-c", "airdma-python")
"""The crates whose artefacts are packed."""
TARGET = "x86_64-unknown-linux-gnu"


def document(version: str, copied: list[libraries.Package]) -> dict[str, Any]:
    """The bill, the same whenever it is written, where the same packages are copied."""
    found = metadata()
    lock = tomllib.loads((SOURCE / "Cargo.lock").read_text(encoding="utf-8"))
    sums = {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}
    packages = {package["id"]: package for package in found["packages"]}
    components = [component(packages[name], sums) for name in compiled_in(found)]
    components += [libraries.component(package) for package in copied]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "airdma", "version": version}},
        "components": sorted(components, key=lambda it: (it["name"], it["version"])),
    }


def metadata() -> dict[str, Any]:
    """What cargo knows of all crates."""
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", TARGET]
    said = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, check=True).stdout
    return dict(json.loads(said))


def compiled_in(metadata: dict[str, Any]) -> set[str]:
    """The ids of the shipped crates and of all that they depend on, tests and builds apart."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    found: set[str] = set()
    waiting = [node for node in nodes if names[node] in SHIPPED]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        normal = (it for it in nodes[node]["deps"] if any(kind["kind"] is None for kind in it["dep_kinds"]))
        waiting += [it["pkg"] for it in normal]
    return found


def component(package: dict[str, Any], sums: dict[tuple[str, str], str | None]) -> dict[str, Any]:
    name, version = package["name"], package["version"]
    entry: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:cargo/{name}@{version}",
        "bom-ref": f"{name}@{version}",
    }
    if package["license"]:
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = sums.get((name, version))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry
