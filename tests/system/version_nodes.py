"""Programs that are linked against each version node of rdma-core's libraries, up to the newest,
load with both artefacts, and each of their symbols is airdma's.

The symbols are those of crates/verbs/tests/rdma-core-65.txt. Two stand-ins export them, so that the
host's rdma-core may be older.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import Host

FACTS = build.ROOT / "crates" / "verbs" / "tests" / "rdma-core-65.txt"
PRIVATE = "IBVERBS_PRIVATE_"
RELEASES = ("25", "33", "34", "57", "59", "64", "65")
"""Releases with version nodes of private names: those that changed the interface to providers.
"""
SHARED_PRIVATE = ("ibv_query_gid_type", "ibv_wr_opcode_str")
"""Private names that the preload has: programs import them, not only providers."""

Nodes = dict[str, list[str]]


def symbols() -> Nodes:
    """Node -> names."""
    nodes: Nodes = {}
    for line in FACTS.read_text(encoding="ascii").splitlines():
        if not line.startswith("#"):
            node, name = line.split()
            nodes.setdefault(node, []).append(name)
    private = nodes[PRIVATE + "65"]
    for release in RELEASES:
        nodes[PRIVATE + release] = [
            name.replace("register_driver_65", f"register_driver_{release}") for name in private
        ]
    return nodes


def check(host: Host, folder: Path) -> list[str]:
    """What is wrong, empty if nothing is; `folder` takes what is compiled."""
    nodes = symbols()
    stand_ins = folder / "stand-ins"
    stand_ins.mkdir()
    stand_in(
        stand_ins, "libibverbs.so.1", {node: names for node, names in nodes.items() if node.startswith("IBVERBS_")}
    )
    stand_in(stand_ins, "librdmacm.so.1", {node: names for node, names in nodes.items() if node.startswith("RDMACM_")})
    dropin, preload = build.dropin() / "libibverbs.so.1", build.library()
    complaints = []
    for node, names in nodes.items():
        binary = program(folder, stand_ins, node, names)
        environment = ["env", "LD_BIND_NOW=1", f"LD_LIBRARY_PATH={build.dropin()}"]
        complaints += _binds(host, [*environment, binary], dict.fromkeys(names, dropin))
        environment = ["env", "LD_BIND_NOW=1", f"LD_LIBRARY_PATH={stand_ins}", f"LD_PRELOAD={preload}"]
        ours = [name for name in names if _in_preload(node, name)]
        complaints += _binds(host, [*environment, binary], dict.fromkeys(ours, preload))
    return complaints


def _in_preload(node: str, name: str) -> bool:
    """Not there: what serves hardware providers, and rsockets, both rdma-core's own."""
    if node.startswith("RDMACM_"):
        return name.startswith("rdma_")
    return not node.startswith(PRIVATE) or name in SHARED_PRIVATE


def stand_in(folder: Path, name: str, nodes: Nodes) -> None:
    """A library of that name, with these symbols."""
    source, script = folder / f"{name}.c", folder / f"{name}.map"
    lines = []
    for node, names in nodes.items():
        for symbol in names:
            lines.append(f"void in_{node.replace('.', '_')}_{symbol}(void) {{ }}")
            alias = f"in_{node.replace('.', '_')}_{symbol}, {symbol}@{node}"
            lines.append(f'__asm__(".symver {alias}");')
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    script.write_text("".join(f"{node} {{ }};\n" for node in nodes), encoding="ascii")
    argv = [
        "cc",
        "-shared",
        "-fPIC",
        f"-Wl,-soname,{name}",
        f"-Wl,--version-script={script}",
        "-o",
        str(folder / name),
        str(source),
    ]
    subprocess.run(argv, check=True)


def program(folder: Path, stand_ins: Path, node: str, names: list[str]) -> str:
    """A program that imports these symbols, and prints where each was found."""
    source = folder / f"{node}.c"
    table = "".join(f'    {{ "{name}", from_node_{name} }},\n' for name in names)
    imports = "".join(
        f'void from_node_{name}(void);\n__asm__(".symver from_node_{name}, {name}@{node}");\n' for name in names
    )
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n"
        + imports
        + "static const struct { const char *name; void (*address)(void); } table[] = {\n"
        + table
        + "};\nint main(void)\n{\n    for (unsigned i = 0; i < sizeof(table) / sizeof(*table); i++) {\n"
        "        Dl_info info;\n        if (!dladdr((void *)table[i].address, &info))\n            return 1;\n"
        '        printf("%s %s\\n", table[i].name, info.dli_fname);\n    }\n    return 0;\n}\n',
        encoding="ascii",
    )
    binary = str(folder / node)
    library = "librdmacm.so.1" if node.startswith("RDMACM_") else "libibverbs.so.1"
    subprocess.run(["cc", "-fPIE", "-pie", "-o", binary, str(source), f"-L{stand_ins}", f"-l:{library}"], check=True)
    return binary


def _binds(host: Host, argv: list[str], expected: dict[str, Path]) -> list[str]:
    outcome = host.run(argv)
    if not outcome.ok:
        return [outcome.explain()]
    found = dict(line.split(maxsplit=1) for line in outcome.stdout.splitlines())
    return [
        f"{' '.join(argv)}: {name} is that of {found.get(name)}"
        for name, library in expected.items()
        if Path(found.get(name, "/")).resolve() != library.resolve()
    ]
