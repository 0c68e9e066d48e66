"""Many connections in one thread, by asyncio: a server that answers in capitals, and its clients.

    tasks.py serve ADDRESS CLIENTS       ends after that many clients
    tasks.py ask ADDRESS WORD...         one client for each word; prints the answers
"""

import asyncio
import sys

import airdma

PORT = 7476
BYTES_MAX = 4096


async def serve(address: str, clients: int) -> None:
    device = airdma.Device(address)
    with device.listen(PORT) as listener:
        print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(answer(device, await listener.accept()))


async def answer(device: airdma.Device, endpoint: airdma.Endpoint) -> None:
    region = device.allocate(BYTES_MAX)
    try:
        while True:
            message = await endpoint.recv(region)
            capitals = bytes(message).upper()
            region[: len(capitals)] = capitals
            await endpoint.send(region, len(capitals))
    except airdma.ClosedError:
        pass  # They have heard enough.


async def ask(address: str, words: list[str]) -> None:
    device = airdma.Device.towards((address, PORT))
    async with asyncio.timeout(10):
        answers = await asyncio.gather(*(ask_one(device, address, word.encode()) for word in words))
    print(*(answer.decode() for answer in answers))


async def ask_one(device: airdma.Device, address: str, word: bytes) -> bytes:
    async with await device.connect((address, PORT)) as endpoint:
        region = device.allocate(BYTES_MAX)
        region[: len(word)] = word
        await endpoint.send(region, len(word))
        return bytes(await endpoint.recv(region))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", address, clients]:
            asyncio.run(serve(address, int(clients)))
        case ["ask", address, *words] if words:
            asyncio.run(ask(address, words))
        case _:
            sys.exit("usage: tasks.py serve ADDRESS CLIENTS | tasks.py ask ADDRESS WORD...")
