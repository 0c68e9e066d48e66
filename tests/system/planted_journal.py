"""`airdma recv` where an archive, an older airdma or an earlier sender has left a journal that
names other places.

The journal is byte for byte what airdma took for its own before journals were sealed with a key of
the receiving user. It lies under the name that it had then, the id of the offer, which the sender
knows beforehand. It lies also, in today's version, under the name that the key makes, where today's
receiver looks: another user who sees the directory while a transfer is interrupted knows that one.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from airdma_lab.lab import Lab
from case import Tally
from file_transfer import OK, Bench, ended, memory

_CHECKSUM = b"airdma files journal 1"
_KEY = b"airdma 2026-11-25 files: journals of a receiving user"
_SLOT_BYTES = 40


def run(lab: Lab, tally: Tally) -> None:
    tests: list[tuple[str, Callable[[Bench], list[str]]]] = [
        ("a planted journal renames to an absolute path", lambda bench: _renames(bench, absolute=True)),
        ("a planted journal renames to a path that leads up", lambda bench: _renames(bench, absolute=False)),
        ("a planted journal says that all is there", _says_all_is_there),
        ("a planted journal is a pipe", _is_a_pipe),
        ("a sender ships a directory with a journal", _is_sent),
    ]
    with tempfile.TemporaryDirectory(prefix="airdma-planted-", dir=memory()) as folder:
        for number, (name, test) in enumerate(tests):
            started = time.monotonic()
            try:
                complaints = test(Bench(lab, Path(folder, str(number))))
            except AssertionError as error:
                complaints = [str(error)]
            tally.record(f"airdma recv: {name}", complaints, time.monotonic() - started)


def _renames(bench: Bench, absolute: bool) -> list[str]:
    """The proven attack: a default `airdma recv` into what was unpacked writes another file of the
    user's.
    """
    payload = bench.write("payload", 100)
    outside = bench.folder / "authorized_keys"
    target = str(outside) if absolute else "../authorized_keys"
    _plant(bench, payload, renamed={0: os.fsencode(target)})
    complaints = _once(bench, payload)
    if outside.exists():
        complaints.append(f"{target} was written")
    if not (bench.out / "payload").is_file():
        complaints.append("the file is not under its name")
    return complaints


def _says_all_is_there(bench: Bench) -> list[str]:
    """Content that the sender never sent is not given the sender's name."""
    payload = bench.write("payload", 100)
    for staging in _plant(bench, payload, chunks=1):
        (staging / "0").write_bytes(b"something else")
    complaints = _once(bench, payload)
    if (bench.out / "payload").read_bytes() != payload.read_bytes():
        complaints.append("the file has the planted content")
    return complaints


def _is_a_pipe(bench: Bench) -> list[str]:
    """A receiver does not hang at it."""
    payload = bench.write("payload", 100)
    for staging in _plant(bench, payload):
        (staging / "journal").unlink()
        os.mkfifo(staging / "journal", 0o600)
    return _once(bench, payload)


def _is_sent(bench: Bench) -> list[str]:
    """As the first of two offers: the sender leaves the directory out and says so, and the second
    offer does no harm either.
    """
    payload = bench.write("payload", 100)
    name = _staging_name(payload)
    for prefix in (name, name.upper(), f".air\u200cdma-{name[8:]}", f".\uff41irdma-{name[8:]}"):
        bench.write(f"proj/within/{prefix}/journal", 10)
    bench.write("proj/within/file", 10)
    receiver, sender = bench.recv(), bench.send(bench.source / "proj")
    complaints = ended(sender, OK) + ended(receiver, OK)
    skipped = [event["path"] for event in sender.events("skipped")]
    if len(skipped) != 4:
        complaints.append(f"left out were {skipped}")
    arrived = sorted(path.name for path in (bench.out / "proj/within").iterdir())
    if arrived != ["file"]:
        complaints.append(f"there is {arrived}")
    return complaints


def _once(bench: Bench, payload: Path) -> list[str]:
    """A transfer that goes well, by a receiver that has looked at what was planted under the name
    that its key makes.
    """
    complaints = bench.once(payload)
    if (bench.out / _keyed_name(bench, payload)).exists():
        complaints.append("what was planted is still there: the receiver looks elsewhere")
    return complaints


def _plant(bench: Bench, payload: Path, renamed: dict[int, bytes] | None = None, chunks: int = 0) -> list[Path]:
    """What unpacking an archive leaves: the unfinished directory of the offer of `payload`, and its
    journal.
    """
    folders = [bench.out / name for name in (_staging_name(payload), _keyed_name(bench, payload))]
    for version, staging in enumerate(folders, start=1):
        staging.mkdir(mode=0o700)
        (staging / "journal").write_bytes(_journal(version, _manifest_id(payload), renamed or {}, chunks))
    return folders


def _keyed_name(bench: Bench, payload: Path) -> str:
    """As `JournalKey::staging_name` in crates/files/src/journal_key.rs."""
    identity = bench.folder / "home-b" / "identity"
    if not identity.exists():
        bench.recv().signal(signal.SIGTERM)
    secret = bytes.fromhex(identity.read_text().splitlines()[0])
    key = _words(_derived(_KEY, secret))
    name = _blake3(b"name" + _manifest_id(payload), key, 1 << 4)
    return f".airdma-{name[:8].hex()}"


def _staging_name(payload: Path) -> str:
    return f".airdma-{_manifest_id(payload)[:8].hex()}"


def _manifest_id(payload: Path) -> bytes:
    """The manifest's identifier for an offer of one file."""
    stat = payload.stat()
    seconds, nanos = divmod(stat.st_ctime_ns, 10**9)
    stamp = _blake3(stat.st_ino.to_bytes(8))[:4] + _blake3(seconds.to_bytes(8) + nanos.to_bytes(8))[:4]
    modified, modified_nanos = divmod(stat.st_mtime_ns, 10**9)
    name = os.fsencode(payload.name)
    entry = bytes([2, 0, len(name)]) + name + (stat.st_mode & 0o7777).to_bytes(2)
    entry += modified.to_bytes(8) + modified_nanos.to_bytes(4) + stat.st_size.to_bytes(8) + stamp
    return _blake3(b"airdma-m\x01" + entry + b"\0" + (1).to_bytes(4))


def _journal(version: int, manifest_id: bytes, renamed: dict[int, bytes], chunks: int) -> bytes:
    """Version 1 is the one with a plain checksum. Version 2 has a keyed seal in its place, and is
    otherwise the same.
    """
    slot = (1).to_bytes(8) + chunks.to_bytes(8)
    slot += _checksum(slot + manifest_id)[: _SLOT_BYTES - len(slot)]
    header = b"airdma-j" + bytes([version]) + manifest_id + len(renamed).to_bytes(4)
    for index, name in renamed.items():
        header += index.to_bytes(4) + bytes([len(name)]) + name
    header += (0).to_bytes(4)
    return bytes(_SLOT_BYTES) + slot + header + _checksum(header)


def _checksum(data: bytes) -> bytes:
    """With the context that journals had."""
    return _derived(_CHECKSUM, data)


def _derived(context: bytes, data: bytes) -> bytes:
    """BLAKE3 in its mode that derives keys."""
    return _blake3(data, _words(_blake3(context, flags=1 << 5)), 1 << 6)


_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8
_MASK = 0xFFFFFFFF
_BLOCK_BYTES, _CHUNK_BYTES = 64, 1024


def _blake3(data: bytes, key: tuple[int, ...] = _IV, flags: int = 0) -> bytes:
    """BLAKE3 of at most one chunk."""
    assert len(data) <= _CHUNK_BYTES
    blocks = [data[at : at + _BLOCK_BYTES] for at in range(0, len(data), _BLOCK_BYTES)] or [b""]
    value = key
    for number, block in enumerate(blocks):
        marks = flags | (_CHUNK_START if number == 0 else 0)
        marks |= _CHUNK_END | _ROOT if number + 1 == len(blocks) else 0
        value = _compress(value, block, marks)
    return b"".join(word.to_bytes(4, "little") for word in value)


def _compress(value: tuple[int, ...], block: bytes, flags: int) -> tuple[int, ...]:
    message = list(_words(block.ljust(_BLOCK_BYTES, b"\0")))
    state = [*value, *_IV[:4], 0, 0, len(block), flags]
    columns = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    diagonals = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))
    for _ in range(7):
        for number, (a, b, c, d) in enumerate((*columns, *diagonals)):
            for word, (turn_d, turn_b) in zip(message[2 * number : 2 * number + 2], ((16, 12), (8, 7)), strict=True):
                state[a] = (state[a] + state[b] + word) & _MASK
                state[d] = _turned(state[d] ^ state[a], turn_d)
                state[c] = (state[c] + state[d]) & _MASK
                state[b] = _turned(state[b] ^ state[c], turn_b)
        message = [message[place] for place in _ORDER]
    return tuple(low ^ high for low, high in zip(state[:8], state[8:], strict=True))


def _turned(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & _MASK


def _words(data: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4))
