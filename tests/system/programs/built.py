"""Programs that are built from sources that registries have: Valkey, from Debian's unstable suite,
and the examples of Rust crates. What was built stays in `target/programs`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from airdma_lab import archive, build

from programs.line import SPINS, Line, Unavailable

FOLDER = build.ROOT / "target" / "programs"
BUILD_MAX_S = 1800.0
_PORT = 6379
_SIDEWAY_PORT = 18515


def _valkey() -> Path:
    """The sources, where the server, its RDMA module and its RDMA test are built."""
    at = FOLDER / "valkey"
    built = sorted(at.glob("*/tests/rdma/rdma-test"))
    if built:
        return built[-1].parents[2]
    try:
        suite = archive.Suite(at, "deb-src")
        suite.apt("--download-only", "source", "valkey")
    except archive.Unavailable as reason:
        raise Unavailable(str(reason)) from reason
    tarball = max(at.glob("valkey_*.orig.tar.gz"), key=lambda file: file.stat().st_mtime)
    sources = at / tarball.name.removeprefix("valkey_").removesuffix(".orig.tar.gz")
    sources.mkdir(exist_ok=True)
    _run(["tar", "--extract", "--strip-components=1", f"--file={tarball}", f"--directory={sources}"])
    programs = ["valkey-server", "valkey-cli", "valkey-benchmark", "valkey-rdma.so"]
    _run(["make", "-C", f"{sources}/src", "BUILD_RDMA=module", "MALLOC=libc", "OPTIMIZATION=-O1", *programs])
    _run(["make", "-C", f"{sources}/tests/rdma"])
    return sources


def _run(argv: list[str]) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=BUILD_MAX_S)
    except (subprocess.TimeoutExpired, FileNotFoundError) as reason:
        raise Unavailable(str(reason)) from reason
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(argv)}: {' '.join(done.stderr.strip().splitlines()[-3:])}")


def _link(folder: Path, name: str, target: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def _prepare_valkey(folder: Path) -> None:
    sources = _valkey()
    _link(folder, "valkey", sources / "src")
    _link(folder, "rdma-test", sources / "tests" / "rdma" / "rdma-test")
    (folder / "dump.rdb").unlink(missing_ok=True)


def _on_valkey(client: str, says: str, bytes_min: int) -> Line:
    listens = f"--rdma-bind {{server}} --rdma-port {_PORT}"
    files = "--dir {folder} --save '' --appendonly no"
    loads = "--loadmodule {folder}/valkey/valkey-rdma.so"
    return Line(
        "valkey (Debian sid, sources)",
        f"{{folder}}/valkey/valkey-server --port 0 --protected-mode no {files} {loads} {listens}",
        client,
        (says,),
        stays=True,
        bytes_min=bytes_min,
        before=_prepare_valkey,
        version=lambda: _valkey().name,
        note="built with `BUILD_RDMA=module`, a module that the server opens with `RTLD_DEEPBIND`",
    )


def _crate(name: str, version: str, *features: str) -> Callable[[Path], None]:
    """Builds the examples of a crate, and puts a link to them into the folder."""

    def prepare(folder: Path) -> None:
        root = FOLDER / f"{name}-{version}"
        if not (root / "bin").exists():
            options = ["--examples", "--locked", "--debug", "--root", str(root), "--target-dir", f"{root}/build"]
            _run(["cargo", "install", f"{name}@{version}", *options, *(f"--features={one}" for one in features)])
        _link(folder, name, root / "bin")

    return prepare


def _async_rdma(server: str, client: str, *says: str) -> Line:
    version = "0.5.0"
    return Line(
        "async-rdma (crates.io)",
        server,
        client,
        says,
        before=_crate("async-rdma", version, "cm", "raw"),
        version=lambda: version,
        stays=True,
        note="its examples",
    )


def _sideway(server: str, client: str, *says: str, ready: int | str = _SIDEWAY_PORT) -> Line:
    version = "0.4.3"
    return Line(
        "sideway (crates.io)",
        server,
        client,
        says,
        ready=ready,
        needs_device=bool(server),
        before=_crate("sideway", version),
        version=lambda: version,
        note="its examples; the crate asks plain `dlsym`",
    )


def _sideway_pingpong(name: str) -> Line:
    command = f"{{folder}}/sideway/{name} -d {{device}} -g {{gid}}"
    return _sideway(command, f"{command} {{server}}", "^1000 iters in ")


BUILT = [
    _on_valkey(
        f"{{folder}}/rdma-test --host {{server}} --port {_PORT} --thread 4",
        r"^Valkey Over RDMA test \[OK\]$",
        1_000_000,
    ),
    _on_valkey(
        "{folder}/valkey/valkey-benchmark --rdma -h {server} -t set,get -n 2000 -d 4096 -q",
        r"GET: [0-9.]+ requests per second",
        8_000_000,
    ),
    _on_valkey("{folder}/valkey/valkey-cli --rdma -h {server} ECHO hello", "^hello$", 1000),
    _async_rdma("{folder}/async-rdma/cm_server", "{folder}/async-rdma/cm_client {server} 7471", "^cm_client: end$"),
    _async_rdma("", "{folder}/async-rdma/rpc", "^response: hello$", "^response: world$"),
    _sideway_pingpong("rc_pingpong"),
    _sideway_pingpong("rc_pingpong_split"),
    _sideway(
        "{folder}/sideway/cmtime -b {server}", "{folder}/sideway/cmtime -s {server} -c 100", "^ Connect ", ready=SPINS
    ),
    _sideway("", "{folder}/sideway/ibv_devinfo", "{device}"),
    _sideway("", "{folder}/sideway/show_gids", "{device}"),
]
