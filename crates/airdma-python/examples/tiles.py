"""Frames of twelve cameras over one connection, shown as one picture of tiles.

    tiles.py show 192.0.2.1 PICTURE         an address or the name of an interface here
    tiles.py film 192.0.2.1 [FRAMES]        from anywhere

PICTURE (a PNG) shows the newest frame of each camera when the last of them has ended. Frames are NumPy arrays that lie where the
network wrote them; the end of an array makes room for another frame. Wants NumPy.
"""

import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

import airdma

PORT = 7481
CAMERAS = 12
COLUMNS = 4
WIDTH, HEIGHT = 160, 120
SHAPE = (HEIGHT, WIDTH, 3)
FRAMES_PER_S = 25

Picture = npt.NDArray[np.uint8]


def paint(picture: Picture, camera: int, number: int) -> None:
    """A colour for each camera, and a white bar that moves."""
    picture[:] = np.array([camera * 20, 255 - camera * 20, 40 * (camera % 6)], np.uint8)
    left = number * 8 % WIDTH
    picture[:, left : left + 8] = 255


def png(picture: Picture) -> bytes:
    """An RGB picture as PNG."""
    height, width, _ = picture.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    # Each row begins with its filter: none.
    rows = np.pad(picture.reshape(height, -1), ((0, 0), (1, 0)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes())) + chunk(b"IEND", b"")


def show(address: str, file: Path) -> None:
    device = airdma.Device(address)
    newest: dict[int, Picture] = {}
    ended: set[int] = set()
    with device.listen(PORT) as listener:
        print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
        endpoint = listener.accept().wait()
        # A block for the newest frame of each camera, and some for those on their way.
        with airdma.FrameReceiver(device, endpoint, blocks=CAMERAS + 8) as receiver:
            for frame in receiver:
                if frame.is_end:
                    ended.add(frame.device)
                else:
                    # The array before it ends here, and with it the use of its block.
                    newest[frame.device] = frame.array(SHAPE)
                if len(ended) == CAMERAS:
                    break
            counts = receiver.counts()
    tiles = [newest[camera] for camera in sorted(newest)]
    rows = [np.hstack(tiles[at : at + COLUMNS]) for at in range(0, CAMERAS, COLUMNS)]
    file.write_bytes(png(np.vstack(rows)))
    frames = sum(of_camera["frames"] for of_camera in counts.values())
    print(f"{frames} frames of {len(counts)} cameras")


def film(peer: str, count: int) -> None:
    device = airdma.Device.towards((peer, PORT))
    endpoint = device.connect((peer, PORT)).wait()
    frame_bytes = HEIGHT * WIDTH * 3
    with airdma.FrameSender(device, blocks=2 * CAMERAS, frame_bytes=frame_bytes) as sender:
        sender.open(endpoint)
        for camera in range(CAMERAS):
            sender.add(camera, quota=2)
        for number in range(count):
            for camera in range(CAMERAS):
                block = sender.block(camera, frame_bytes)
                picture = np.frombuffer(block, np.uint8).reshape(SHAPE)
                paint(picture, camera, number)
                # The sender takes a block without views.
                del picture
                sender.send(block)
            time.sleep(1 / FRAMES_PER_S)
        for camera in range(CAMERAS):
            sender.end(camera)
        sender.flush()
    print(f"{count * CAMERAS} frames filmed")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["show", address, file]:
            show(address, Path(file))
        case ["film", peer]:
            film(peer, 25)
        case ["film", peer, count]:
            film(peer, int(count))
        case _:
            sys.exit("usage: tiles.py show ADDRESS PICTURE | tiles.py film HOST [FRAMES]")
