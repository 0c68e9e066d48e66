"""What exchanges messages over queue pairs: qperf, fio."""

from __future__ import annotations

from programs.line import Line

_QPERF = [
    ("rc_lat", "latency"),
    ("rc_bw", "bw"),
    ("rc_bi_bw", "bw"),
    ("rc_rdma_read_lat", "latency"),
    ("rc_rdma_read_bw", "bw"),
    ("rc_rdma_write_lat", "latency"),
    ("rc_rdma_write_bw", "bw"),
    ("rc_rdma_write_poll_lat", "latency"),
    ("rc_compare_swap_mr", "msg_rate"),
    ("rc_fetch_add_mr", "msg_rate"),
    ("ver_rc_compare_swap", "msg_rate"),
    ("ver_rc_fetch_add", "msg_rate"),
    ("conf", "rem_node"),
]
_QPERF_BY_LID = [
    ("-mt 1024 rc_lat", "latency"),
    ("-mt 1024 rc_bw", "bw"),
    ("-mt 1024 uc_lat", "latency"),
    ("-mt 1024 uc_bw", "bw"),
    ("-mt 1024 uc_bi_bw", "bw"),
    ("-mt 1024 uc_rdma_write_lat", "latency"),
    ("-mt 1024 uc_rdma_write_bw", "bw"),
    ("-mt 1024 uc_rdma_write_poll_lat", "latency"),
    ("-m 1024 ud_lat", "latency"),
    ("-m 1024 ud_bw", "bw"),
    ("-m 1024 ud_bi_bw", "bw"),
]
"""What connects by what was told over TCP, which for qperf are no GIDs. It asks for a path MTU of
2,048 bytes unless it is told another, which a port with an interface MTU of 1,500 refuses.
"""


def _fio(verb: str, *, thread: bool, blocks: int, verify: bool = False, note: str = "") -> Line:
    """Blocks of 64 KiB, from the client's memory to the server's. The server has a buffer for each
    block of verb=send: fio asks for no repeat when the receiver is not ready.
    """
    fio = "fio --thread" if thread else "fio"
    job = f"--ioengine=rdma --port=7777 --bs=64k --size={blocks * 64}k"
    job += " --verify=crc32c" if verify else ""
    return Line(
        "fio",
        f"{fio} --name=server {job} --rw=read --iodepth=128",
        f"{fio} --name=client {job} --rw=write --hostname={{server}} --verb={verb} --iodepth=4"
        + (" --do_verify=0 --verify_state_save=0" if verify else ""),
        (rf"issued rwts: total=0,{blocks},0,0", "err= 0"),
        server_says=("err= 0",),
        bytes_min=blocks * 65536 // 2,
        note=note,
    )


MESSAGES = [
    *(
        Line(
            "qperf",
            "qperf",
            f"qperf {{server}} -cm1 -t 1 {test}",
            (rf"^ +\w*{word}",),
            ready=19765,
            stays=True,
            needs_device=test != "conf",
        )
        for test, word in _QPERF
    ),
    *(
        Line(
            "qperf",
            "qperf",
            f"qperf {{server}} -t 1 {test}",
            (rf"^ +\w*{word}",),
            setup={"AIRDMA_LIDS": "1"},
            ready=19765,
            stays=True,
        )
        for test, word in _QPERF_BY_LID
    ),
    _fio("send", thread=False, blocks=128, verify=True, note="the server verifies each block"),
    _fio("write", thread=False, blocks=1024),
    _fio("write", thread=True, blocks=1024),
    _fio("read", thread=True, blocks=1024),
]
