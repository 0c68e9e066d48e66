"""Video frames that are shown with their holes: what is lost is not awaited.

    frame.py show 192.0.2.1 FOLDER          an address or the name of an interface here
    frame.py film 192.0.2.1 [FRAMES]        from anywhere

Each frame that arrives is a picture in FOLDER (0.ppm, 1.ppm, ...), grey where nothing arrived. A connection carries what must arrive:
where the frames go, and that they are over.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import airdma

PORT = 7477
WIDTH, HEIGHT = 160, 120
FRAME = WIDTH * HEIGHT * 3
SLOTS = 4
FRAMES_PER_S = 30
PATIENCE_S = 0.2


def pictures(count: int) -> Iterator[bytes]:
    """A square that moves over colours."""
    for number in range(count):
        frame = bytearray()
        for y in range(HEIGHT):
            row = bytearray()
            for x in range(WIDTH):
                row += bytes((x * 255 // WIDTH, y * 255 // HEIGHT, number * 20 % 256))
            frame += row
        left = number * 10 % (WIDTH - 20)
        for y in range(50, 70):
            start = (y * WIDTH + left) * 3
            frame[start : start + 20 * 3] = b"\xff" * (20 * 3)
        yield bytes(frame)


def save(record: airdma.Record, folder: Path) -> None:
    picture = bytearray(record)
    for start, end in record.missing:
        picture[start:end] = b"\x80" * (end - start)
    (folder / f"{record.immediate}.ppm").write_bytes(f"P6 {WIDTH} {HEIGHT} 255\n".encode() + picture)
    share = 100 * record.valid_bytes / len(record)
    print(f"frame {record.immediate}: {share:.1f} %, {len(record.missing)} holes")


def show(address: str, folder: Path) -> None:
    device = airdma.Device(address)
    shared = device.allocate(SLOTS * FRAME).share(airdma.Rights.RECORD)
    with device.datagram_endpoint() as endpoint, device.listen(PORT) as listener:
        print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
        with listener.accept().wait() as camera:
            invitation = bytes(endpoint.address) + bytes(shared.remote_for_records())
            region = device.allocate(len(invitation))
            region[:] = invitation
            camera.send(region).wait()
            is_over = camera.recv(device.allocate(1))
            while True:
                for record in endpoint.records(PATIENCE_S):
                    with record:
                        save(record, folder)
                try:
                    is_over.wait(0)
                    return
                except TimeoutError:
                    pass


def film(peer: str, count: int) -> None:
    device = airdma.Device.towards((peer, PORT))
    with device.connect((peer, PORT)).wait() as screen, device.datagram_endpoint() as endpoint:
        invitation = bytes(screen.recv(device.allocate(100)).wait())
        to = airdma.DatagramAddress(invitation[: airdma.DatagramAddress.BYTES])
        remote = airdma.Remote(invitation[airdma.DatagramAddress.BYTES :])
        region = device.allocate(FRAME)
        for number, picture in enumerate(pictures(count)):
            region[:] = picture
            at = number % SLOTS * FRAME
            endpoint.write_record(region, to, remote, at, immediate=number).wait()
            time.sleep(1 / FRAMES_PER_S)
        screen.send(device.allocate(1)).wait()
    print(f"{count} frames filmed")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["show", address, folder]:
            show(address, Path(folder))
        case ["film", peer]:
            film(peer, 5)
        case ["film", peer, count]:
            film(peer, int(count))
        case _:
            sys.exit("usage: frame.py show ADDRESS FOLDER | frame.py film HOST [FRAMES]")
