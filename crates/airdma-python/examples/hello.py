"""Hello: a program that listens, and one that greets it.

    hello.py listen ADDRESS      ADDRESS of an interface here, as 192.0.2.1, or the interface's name
    hello.py greet ADDRESS       the same one, from anywhere

On one host: `hello.py listen 127.0.0.1`, and `hello.py greet 127.0.0.1` in another terminal.
"""

import sys

import airdma

PORT = 7471


def main() -> None:
    match sys.argv[1:]:
        case ["listen", address]:
            listen(address)
        case ["greet", address]:
            greet(address)
        case _:
            sys.exit("usage: hello.py listen ADDRESS | hello.py greet ADDRESS")


def listen(address: str) -> None:
    device = airdma.Device(address)
    listener = device.listen(PORT)
    print(f"listening on {address}, port {PORT}", file=sys.stderr, flush=True)
    with listener.accept().wait() as endpoint:
        message = endpoint.recv(device.allocate(4096)).wait()
        print(f"{endpoint.peer} says: {bytes(message).decode()}")
        region = message.region
        region[:7] = b"welcome"
        endpoint.send(region, 7).wait()


def greet(address: str) -> None:
    device = airdma.Device.towards((address, PORT))
    endpoint = device.connect((address, PORT)).wait()
    region = device.allocate(4096)
    region[:5] = b"hello"
    endpoint.send(region, 5).wait()
    message = endpoint.recv(region).wait()
    print(f"{endpoint.peer} says: {bytes(message).decode()}")


if __name__ == "__main__":
    main()
