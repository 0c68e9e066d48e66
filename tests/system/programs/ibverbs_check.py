"""A WRITE of 64 KiB by PyPI's ibverbs, which opens libibverbs with dlopen(3) and asks plain
dlsym(3).

ibverbs_check.py DEVICE GID_INDEX ADDRESS [call]     listens at the address, or calls there
"""

import ctypes
import socket
import sys
import time

import ibverbs as ib

PORT = 7755
LEN = 65536
PATTERN = bytes(number % 251 for number in range(LEN))
ACCESS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE


def main(name: str, gid_index: int, address: str, calls: bool) -> None:
    device = next(one for one in ib.get_device_list() if one.name == name)
    context = device.open()
    domain, queue = context.alloc_pd(), context.create_cq(16)
    memory = ctypes.create_string_buffer(LEN)
    region = domain.reg_mr(ctypes.addressof(memory), LEN, ACCESS)
    pair = domain.create_qp(ib.QPInitAttr(send_cq=queue, recv_cq=queue, qp_type=ib.QPType.RC))
    own = ib.local_qp_info(pair, context.query_port(1), context.query_gid(1, gid_index), port=1, psn=0)
    wire = _called(address) if calls else _listened(address)
    wire.sendall(b"%d %d %s\n" % (ctypes.addressof(memory), region.rkey, own.to_bytes().hex().encode()))
    lines = wire.makefile("rb")
    remote, key, info = lines.readline().split()
    ib.connect_rc(pair, ib.QPInfo.from_bytes(bytes.fromhex(info.decode())), port=1, sgid_index=gid_index, access=ACCESS)
    wire.sendall(b"connected\n")
    lines.readline()
    if calls:
        ctypes.memmove(memory, PATTERN, LEN)
        pair.post_send(
            ib.SendWR(
                wr_id=1,
                sg_list=[ib.SGE(region, LEN)],
                opcode=ib.WROpcode.RDMA_WRITE,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=int(remote),
                rkey=int(key),
            )
        )
        deadline = time.monotonic() + 20
        while not (done := queue.poll(1)) and time.monotonic() < deadline:
            pass
        done[0].raise_for_status()
        wire.sendall(b"written\n")
    lines.readline()
    if not calls and memory.raw != PATTERN:
        sys.exit("other bytes have arrived")
    print("64 KiB were written" if calls else "64 KiB have arrived")


def _called(address: str) -> socket.socket:
    return socket.create_connection((address, PORT))


def _listened(address: str) -> socket.socket:
    with socket.create_server((address, PORT)) as listener:
        return listener.accept()[0]


main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:] == ["call"])
