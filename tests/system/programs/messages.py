"""What exchanges messages over queue pairs: UCX, libfabric, MPI, qperf, fio."""

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
    ("rc_lat", "latency"),
    ("rc_bw", "bw"),
    ("uc_lat", "latency"),
    ("uc_bw", "bw"),
    ("uc_bi_bw", "bw"),
    ("uc_rdma_write_lat", "latency"),
    ("uc_rdma_write_bw", "bw"),
    ("uc_rdma_write_poll_lat", "latency"),
    ("-m 1024 ud_lat", "latency"),
    ("-m 1024 ud_bw", "bw"),
    ("-m 1024 ud_bi_bw", "bw"),
]
"""What connects by what was told over TCP, which for qperf are no GIDs."""

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
]
