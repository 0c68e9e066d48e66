"""The guest: a stock Debian kernel and a small root, made of Debian packages and kept in the user's
cache.

Needs no root: packages are downloaded and unpacked, and no script of theirs runs. The guest's
processes are all root, so that owners of files do not matter there.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
KERNELS = {"6.1": "linux-image-amd64", "6.12": "linux-image-6.12-amd64"}
"""Kernel -> the package that depends on its newest build. Debian 12 has the first, its security
archive the second.
"""

PACKAGES = [
    "bash",
    "coreutils",
    "grep",
    "sed",
    "mawk",
    "findutils",
    "util-linux",
    "mount",
    "kmod",
    "procps",
    "iproute2",
    "iputils-ping",
    "tcpdump",
    "iperf3",
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
    "perftest",
    "rdmacm-utils",
    "iw",
    "wpasupplicant",
    "hostapd",
    "wireless-regdb",
]

MODULES = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "virtio_rng",
    "9p",
    "9pnet_virtio",
    "ext4",
    "crc32c_generic",
    "crc32c_intel",
    "rdma_rxe",
    "rdma_ucm",
    "ib_uverbs",
    "crc32_generic",
    "crc32_pclmul",
    "veth",
    "ifb",
    "sch_netem",
    "sch_ingress",
    "act_mirred",
    "cls_matchall",
    "mac80211_hwsim",
    "ccm",
    "ctr",
    "cmac",
    "gcm",
    "ghash_generic",
    "aes_generic",
]
"""Those of them that the kernel has built in are no modules, and left out."""

DISK_PACKAGES = [
    "dosfstools",
    "exfatprogs",
    "ntfs-3g",
    "e2fsprogs",
    "btrfs-progs",
    "xfsprogs",
    "nfs-kernel-server",
    "nfs-common",
    "samba",
    "cifs-utils",
]
DISK_MODULES = [
    "loop",
    "vfat",
    "nls_utf8",
    "nls_ascii",
    "nls_cp437",
    "exfat",
    "ntfs3",
    "xfs",
    "btrfs",
    "overlay",
    "nfsd",
    "nfs",
    "nfsv4",
    "cifs",
    "hmac",
    "sha512_generic",
    "md5",
    "ecb",
    "aead2",
]
"""What disks.py needs besides."""

UNWANTED = ("./usr/share/doc", "./usr/share/man", "./usr/share/locale", "./usr/share/info", "./usr/share/lintian")


UNUSED_S = 14 * 24 * 3600


class ImageError(RuntimeError):
    """The guest could not be made; the text says what failed, and what to do."""


@dataclass(frozen=True)
class Image:
    """Files that QEMU starts."""

    kernel: Path
    initrd: Path
    root: Path
    release: str
    """`uname -r`."""


def cache() -> Path:
    """Where images are kept: $AIRDMA_INTEROP_CACHE, or a folder in the user's cache."""
    chosen = os.environ.get("AIRDMA_INTEROP_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else home / "airdma" / "interop"


def image(kernel: str, has_disks: bool = False) -> Image:
    """The image with that kernel, made now if there is none that was made by these very files."""
    # The host's release, too: programs that are compiled here run there.
    inputs = [Path(__file__), Path("/etc/os-release"), *sorted((HERE / "guest").iterdir())]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()[:12]
    name = f"{kernel}-{key}{'d' if has_disks else ''}"
    kept = cache() / name
    if not kept.exists():
        _tidy()
        making = cache() / f"{name}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            _make(kernel, making, has_disks)
            _keep(making, kept)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    os.utime(kept)
    release = (kept / "release").read_text(encoding="ascii")
    return Image(kept / "vmlinuz", kept / "initrd", kept / "root.ext4", release)


def _keep(made: Path, kept: Path) -> None:
    try:
        made.rename(kept)
    except OSError:
        if not kept.exists():  # another run made it meanwhile
            raise


def _tidy() -> None:
    """Removes images that were not used for days, and what killed builders left."""
    for old in cache().glob("6.*-*"):
        _, _, pid = old.name.partition("-")[2].partition(".")
        is_left = pid.isdigit() and not Path("/proc", pid).exists()
        if is_left or (not pid and time.time() - old.stat().st_mtime > UNUSED_S):
            shutil.rmtree(old, ignore_errors=True)


def _make(kernel: str, folder: Path, has_disks: bool) -> None:
    def say(what: str) -> None:
        print(f"guest {kernel}: {what}", flush=True)

    say("downloading Debian packages")
    kernel_deb = _download_one(_newest(KERNELS[kernel]), folder / "kernel")
    debs = _download([*PACKAGES, *(DISK_PACKAGES if has_disks else [])], folder / "debs")
    busybox = _download_one("busybox-static", folder / "busybox")

    say("unpacking")
    root = folder / "root"
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for deb in [*debs, busybox]:
        _unpack(deb, root)
    _unpack(kernel_deb, folder / "k")
    release = next((folder / "k" / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    shutil.copy(folder / "k" / "boot" / f"vmlinuz-{release}", folder / "vmlinuz")

    say(f"modules of {release}")
    boot = _copy_modules(folder / "k", root, release, [*MODULES, *(DISK_MODULES if has_disks else [])])
    _settle(root)
    _pack_initrd(root, boot, folder)
    say("file system")
    _pack_root(root, folder / "root.ext4")
    (folder / "release").write_text(release, encoding="ascii")
    for name in ("debs", "kernel", "busybox", "root", "k", "initrd.d"):
        shutil.rmtree(folder / name, ignore_errors=True)


def _apt(*arguments: str, folder: Path) -> str:
    # As if nothing were installed: apt then says, and brings, all that the packages depend on.
    status = folder / "status"
    status.touch()
    options = {
        "Dir::State::status": status,
        "Dir::Cache::archives": folder,
        "Debug::NoLocking": 1,
        "APT::Install-Recommends": 0,
        "APT::Sandbox::User": "",
    }
    chosen = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return _run(["apt-get", *chosen, "-qq", "--yes", *arguments], cwd=folder)


def _download(packages: list[str], folder: Path) -> list[Path]:
    (folder / "partial").mkdir(parents=True)
    _apt("install", "--download-only", *packages, folder=folder)
    return sorted(folder.glob("*.deb"))


def _download_one(package: str, folder: Path) -> Path:
    folder.mkdir()
    _apt("download", package, folder=folder)
    return next(folder.glob("*.deb"))


def _newest(meta: str) -> str:
    command = ["apt-cache", "depends", "--important", meta]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=_ENGLISH).stdout
    if "Depends: linux-image" not in found and os.geteuid() == 0:
        _run(["apt-get", "-qq", "update"])  # as in a container, whose image has no lists
        found = _run(command)
    names = [line.split()[-1] for line in found.splitlines() if "Depends: linux-image" in line]
    if not names:
        raise ImageError(
            f"apt knows no kernel behind {meta}: it needs Debian 12 on amd64, and lists (sudo apt-get update)"
        )
    return names[0]


def _unpack(deb: Path, root: Path) -> None:
    root.mkdir(exist_ok=True)
    exclude = [f"--exclude={path}" for path in UNWANTED]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as tar:
        command = ["tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(root), *exclude]
        subprocess.run(command, stdin=tar.stdout, check=True)
    if tar.returncode != 0:
        raise ImageError(f"{deb.name} cannot be unpacked")


def _copy_modules(unpacked: Path, root: Path, release: str, modules: list[str]) -> list[Path]:
    """Copies what `modules` need. Returns what is needed to reach the root, in order."""
    source = next(path for path in (unpacked / "lib/modules", unpacked / "usr/lib/modules") if path.exists()) / release
    # modprobe wants lib/modules below the folder that it is given.
    if not (unpacked / "lib").exists():
        (unpacked / "lib").symlink_to("usr/lib")
    _run(["depmod", "-b", str(unpacked), release])
    target = root / "usr/lib/modules" / release
    target.mkdir(parents=True)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(source / name, target)

    def needed(names: list[str]) -> list[Path]:
        found: dict[Path, None] = {}
        for name in names:
            command = ["modprobe", "-d", str(unpacked), "-S", release, "--show-depends", name]
            shown = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [line.split() for line in shown.stdout.splitlines()]
            found.update(dict.fromkeys(Path(words[1]).resolve() for words in lines if words[:1] == ["insmod"]))
        return list(found)

    copied = {}
    for module in needed(modules):
        copy = target / module.relative_to(source.resolve()).with_suffix(
            "" if module.suffix == ".xz" else module.suffix
        )
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(lzma.decompress(module.read_bytes()) if module.suffix == ".xz" else module.read_bytes())
        copied[module] = copy
    missing = {"rdma_rxe", "virtio_blk", "mac80211_hwsim"} - {path.stem for path in copied.values()}
    if missing:
        raise ImageError(f"the kernel {release} has no {', '.join(sorted(missing))}")
    _run(["depmod", "-b", str(root), release])
    return [copied[module] for module in needed(["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"])]


def _settle(root: Path) -> None:
    """What the packages' scripts would have done, as far as anybody here needs it."""
    etc = root / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n", encoding="ascii"
    )
    (etc / "group").write_text("root:x:0:\nnogroup:x:65534:\n", encoding="ascii")
    (etc / "hosts").write_text("127.0.0.1 localhost guest\n::1 localhost\n", encoding="ascii")
    (root / "usr/bin/awk").symlink_to("mawk")
    # Debian chooses between two signers of this database by its system of alternatives.
    for name in ("regulatory.db", "regulatory.db.p7s"):
        file = root / "lib/firmware" / name
        if not file.exists():
            file.symlink_to(f"{name}-debian")
    for name in ("proc", "sys", "dev", "run", "tmp", "root", "mnt/host"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copytree(HERE / "guest", root / "airdma")


_INITRD_INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do /bin/busybox insmod "/modules/$module"; done < /modules/list
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 200 ]; do /bin/busybox usleep 50000; tries=$((tries + 1)); done
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /mnt || /bin/busybox poweroff -f
exec /bin/busybox switch_root /mnt /airdma/init
"""


def _pack_initrd(root: Path, modules: list[Path], folder: Path) -> None:
    content = folder / "initrd.d"
    for name in ("bin", "dev", "mnt", "modules"):
        (content / name).mkdir(parents=True)
    busybox = root / "usr/bin/busybox"
    shutil.copy(busybox, content / "bin/busybox")
    for module in modules:
        shutil.copy(module, content / "modules")
    (content / "modules/list").write_text("".join(f"{module.name}\n" for module in modules), encoding="ascii")
    init = content / "init"
    init.write_text(_INITRD_INIT, encoding="ascii")
    init.chmod(0o755)
    archive = f"set -o pipefail; find . | {busybox} cpio -o -H newc | gzip -1 > ../initrd"
    _run(["bash", "-c", archive], cwd=content)


def _pack_root(root: Path, target: Path) -> None:
    used = int(_run(["du", "-sm", str(root)]).split()[0])
    with target.open("wb") as file:
        file.truncate((used * 12 // 10 + 200) << 20)
    options = ["-E", "lazy_itable_init=1,nodiscard", "-O", "^has_journal", "-d", str(root)]
    _run(["mkfs.ext4", "-q", "-F", *options, str(target)])


_ENGLISH = {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}


def _run(argv: list[str], cwd: Path | None = None) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd, env=_ENGLISH)
    if result.returncode != 0:
        hint = "\nIs apt's list of packages up to date (sudo apt-get update)?" if argv[0].startswith("apt") else ""
        raise ImageError(f"{' '.join(argv[:1] + argv[-3:])}: {result.stderr.strip()[-2000:]}{hint}")
    return result.stdout


if __name__ == "__main__":
    print(image(sys.argv[1] if len(sys.argv) > 1 else "6.1"))
