"""The catalogue: programs that stream media."""

from __future__ import annotations

import subprocess
from pathlib import Path

from entry import Entry

_AS_NOBODY = "setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME={home}"
_COUNT = "ffprobe -v error -count_packets -show_entries stream=nb_read_packets -of csv"


def _film(home: Path) -> None:
    """A film of three seconds."""
    source = ["-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-t", "3", "-c:v", "mpeg2video", "-b:v", "2M"]
    subprocess.run(["ffmpeg", "-v", "error", *source, "-f", "mpegts", home / "film.ts"], check=True)
    home.chmod(0o777)


MEDIA = (
    Entry(
        "FFmpeg by tcp://",
        ("ffmpeg", "ffprobe"),
        (("ffmpeg -v error -y -i tcp://0.0.0.0:8087?listen -c copy -f mpegts {home}/copy.ts", "8087"),),
        "ffmpeg -v error -i {home}/film.ts -c copy -f mpegts tcp://{server}:8087 && sleep 2"
        f" && {_COUNT} {{home}}/copy.ts",
        (r"^stream,75",),
        same=True,
        before=_film,
    ),
    Entry(
        "FFmpeg by udp://",
        ("ffmpeg", "ffprobe"),
        (
            (
                "ffmpeg -v error -y -i 'udp://0.0.0.0:8088?timeout=2000000' -c copy -f mpegts {home}/copy.ts",
                "udp 8088",
            ),
        ),
        "ffmpeg -v error -re -i {home}/film.ts -c copy -f mpegts 'udp://{server}:8088?pkt_size=1316' && sleep 4"
        f" && {_COUNT} {{home}}/copy.ts",
        (r"^stream,75",),
        same=True,
        before=_film,
    ),
    Entry(
        "FFmpeg by udp://, long datagrams",
        ("ffmpeg", "ffprobe"),
        (
            (
                "ffmpeg -v error -y -i 'udp://0.0.0.0:8088?timeout=2000000' -c copy -f mpegts {home}/copy.ts",
                "udp 8088",
            ),
        ),
        "ffmpeg -v error -re -i {home}/film.ts -c copy -f mpegts 'udp://{server}:8088?pkt_size=9024' && sleep 4"
        f" && {_COUNT} {{home}}/copy.ts",
        (r"^stream,75",),
        same=True,
        before=_film,
    ),
    Entry(
        "VLC by HTTP",
        ("cvlc", "ffmpeg", "setpriv"),
        ((f"{_AS_NOBODY} cvlc {{home}}/film.ts --loop --sout '#std{{access=http,mux=ts,dst=:8089/s}}'", "8089"),),
        f"{_AS_NOBODY} cvlc -vv --vout vdummy --aout adummy --network-caching 500 --run-time 2 http://{{server}}:8089/s"
        " vlc://quit 2>&1 | grep -a -E 'Stream buffering done|Received first picture'",
        (r"Stream buffering done", r"Received first picture"),
        before=_film,
        other_users=True,
    ),
    Entry(
        "GStreamer: udpsink and udpsrc",
        ("gst-launch-1.0", "/usr/lib/x86_64-linux-gnu/gstreamer-1.0/libgstudp.so"),
        (("gst-launch-1.0 -q udpsrc port=8091 num-buffers=50 ! filesink location={home}/copy", "udp 8091"),),
        "gst-launch-1.0 -q filesrc location={files}/served blocksize=1400 num-buffers=50"
        " ! udpsink host={server} port=8091 && sleep 1 && sha256sum < {home}/copy",
        same=True,
    ),
    Entry(
        "GStreamer: tcpserversink",
        ("gst-launch-1.0", "/usr/lib/x86_64-linux-gnu/gstreamer-1.0/libgsttcp.so"),
        (("gst-launch-1.0 -q audiotestsrc is-live=true ! tcpserversink host=0.0.0.0 port=8090", "8090"),),
        "gst-launch-1.0 tcpclientsrc host={server} port=8090 num-buffers=100 ! fakesink",
        (r"Got EOS",),
        (r"ERROR",),
    ),
    Entry(
        "GStreamer: tcpclientsink",
        ("gst-launch-1.0", "/usr/lib/x86_64-linux-gnu/gstreamer-1.0/libgsttcp.so"),
        (("gst-launch-1.0 -q tcpserversrc host=0.0.0.0 port=8092 ! filesink location={home}/copy", "8092"),),
        "gst-launch-1.0 -q filesrc location={files}/served ! tcpclientsink host={server} port=8092"
        " && sleep 1 && sha256sum < {home}/copy",
        same=True,
    ),
)
