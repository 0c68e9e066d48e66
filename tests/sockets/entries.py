"""The catalogue of real programs: commands of the servers, of the client, and what shows that they
worked.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from entry import Entry
from media import MEDIA
from runtimes import RUNTIMES

NGINX = """\
daemon off; worker_processes 2; pid {home}/nginx.pid; error_log {home}/error.log; user root;
events {{ worker_connections 256; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;
  client_body_temp_path {home}; proxy_temp_path {home}; fastcgi_temp_path {home};
  uwsgi_temp_path {home}; scgi_temp_path {home};
  server {{ listen 8080; root {files}; }}
}}
"""

HAPROXY = """\
global
  maxconn 200
defaults
  mode http
  timeout connect 5s
  timeout client 10s
  timeout server 10s
frontend in
  bind :8081
  default_backend out
backend out
  server one 127.0.0.1:8080
"""

ECHO = """\
import asyncio, hashlib, sys

async def answer(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def serve():
    await (await asyncio.start_server(answer, "0.0.0.0", 8083)).serve_forever()

async def ask(host, number):
    reader, writer = await asyncio.open_connection(host, 8083)
    data = bytes((i * number) & 255 for i in range(200_000))
    async def send():
        writer.write(data)
        await writer.drain()
        writer.write_eof()
    _, back = await asyncio.gather(send(), reader.read(-1))
    writer.close()
    return hashlib.sha256(back).hexdigest() if back == data else "damaged"

async def all_of(host):
    print("\\n".join(await asyncio.gather(*(ask(host, n) for n in range(1, 21)))))

asyncio.run(serve() if len(sys.argv) == 1 else all_of(sys.argv[1]))
"""

SSHD = """\
Port 8022
HostKey {home}/host
AuthorizedKeysFile {home}/user.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile {home}/sshd.pid
"""

SSH = "ssh -q -p 8022 -i {home}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o BatchMode=yes"


def _nginx(home: Path) -> None:
    (home / "nginx.conf").write_text(NGINX.format(home=home, files=home.parent), encoding="ascii")
    (home / "haproxy.cfg").write_text(HAPROXY, encoding="ascii")


def _asyncio(home: Path) -> None:
    (home / "echo.py").write_text(ECHO, encoding="ascii")


def _ssh(home: Path) -> None:
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / key], check=True)
    (home / "sshd_config").write_text(SSHD.format(home=home), encoding="ascii")
    Path("/run/sshd").mkdir(exist_ok=True)


_SERVE_NGINX = ("nginx -p {home} -e {home}/error.log -c {home}/nginx.conf", "8080")
_SERVE_REDIS = ("redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' --dir {home}", "6379")

ENTRIES = (
    Entry(
        "iperf3",
        ("iperf3",),
        (("iperf3 -s -1", "5201"),),
        "iperf3 -c {server} -n 50M",
        (r"sender$", r"receiver$"),
    ),
    Entry(
        "iperf3 of four streams, both ways",
        ("iperf3",),
        (("iperf3 -s -1", "5201"),),
        "iperf3 -c {server} -t 1 -P 4 --bidir",
        (r"SUM.*receiver$",),
    ),
    Entry(
        "iperf3 by UDP",
        ("iperf3",),
        (("iperf3 -s -1", "5201"),),
        "iperf3 -u -c {server} -t 1 -b 20M -l 1200",
        (r"receiver$",),
    ),
    Entry(
        "iperf3 by UDP, long datagrams",
        ("iperf3",),
        (("iperf3 -s -1", "5201"),),
        "iperf3 -u -c {server} -t 2 -b 50M -l 32K",
        (r"receiver$",),
        (r"OUT OF ORDER", r"[1-9]\d*/\d+ \([\d.e-]+%\)  receiver"),
    ),
    Entry(
        "sockperf by UDP",
        ("sockperf",),
        (("sockperf sr -i {server} -p 11111", "udp 11111"),),
        "sockperf pp -i {server} -p 11111 -t 1 -m 64 && sockperf pp -i {server} -p 11111 -t 1 -m 20000",
        (r"dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0",),
    ),
    Entry(
        "nginx and curl",
        ("nginx", "curl"),
        (_SERVE_NGINX,),
        "for i in 1 2 3; do curl -sf http://{server}:8080/served http://{server}:8080/small"
        " | sha256sum; done; curl -s -o /dev/null -w '%{http_code}\n' http://{server}:8080/none",
        (r"^404$",),
        same=True,
        before=_nginx,
    ),
    Entry(
        "nginx and wrk",
        ("nginx", "wrk"),
        (_SERVE_NGINX,),
        "wrk -t 1 -c 20 -d 1 http://{server}:8080/small",
        (r"requests in",),
        (r"Socket errors", r"Non-2xx"),
        before=_nginx,
    ),
    Entry(
        "haproxy before nginx",
        ("nginx", "haproxy", "curl"),
        (_SERVE_NGINX, ("haproxy -db -f {home}/haproxy.cfg", "8081")),
        "for i in 1 2 3; do curl -sf http://{server}:8081/served | sha256sum; done",
        same=True,
        before=_nginx,
    ),
    Entry(
        "redis: commands",
        ("redis-server", "redis-cli"),
        (_SERVE_REDIS,),
        "redis-cli -h {server} set a 1; redis-cli -h {server} incr a;"
        " (for i in $(seq 500); do echo set k$i v$i; done; echo dbsize; echo get k77)"
        " | redis-cli -h {server} | sort | uniq -c",
        (r"v77",),
        same=True,
    ),
    Entry(
        "redis-benchmark",
        ("redis-server", "redis-benchmark"),
        (_SERVE_REDIS,),
        "redis-benchmark -h {server} -n 5000 -c 50 -t set,get -q"
        " && redis-benchmark -h {server} -n 5000 -P 16 -t set,get -q",
        (r"SET: [\d.]+ requests per second", r"GET: [\d.]+ requests per second"),
        (r"Error",),
    ),
    Entry(
        "memcached",
        ("memcached", "nc.openbsd"),
        (("memcached -u root -l 0.0.0.0 -p 11211 -t 4", "11211"),),
        r"for i in 1 2 3 4; do printf 'set k%d 0 0 5\r\nhello\r\nget k%d\r\nquit\r\n' $i $i"
        " | nc.openbsd {server} 11211; done",
        (r"VALUE k4 0 5",),
        same=True,
    ),
    Entry(
        "Python's http.server and wget",
        ("wget",),
        (("/usr/bin/python3 -m http.server --directory {files} 8082", "8082"),),
        "wget -q -O - http://{server}:8082/served | sha256sum",
        same=True,
    ),
    Entry(
        "asyncio",
        (),
        (("/usr/bin/python3 {home}/echo.py", "8083"),),
        "/usr/bin/python3 {home}/echo.py {server}",
        never=(r"damaged", r"Traceback"),
        same=True,
        before=_asyncio,
    ),
    Entry(
        "socat",
        ("socat",),
        (("socat TCP-LISTEN:8084,reuseaddr,fork EXEC:cat", "8084"),),
        "for i in 1 2 3; do socat -t 10 - TCP:{server}:8084 < {files}/served | sha256sum; done",
        same=True,
    ),
    Entry(
        "netcat",
        ("nc.openbsd",),
        (("nc.openbsd -l -N 8085 < {files}/served", "8085"),),
        "nc.openbsd -d {server} 8085 | sha256sum",
        same=True,
    ),
    Entry(
        "ssh and rsync",
        ("sshd", "ssh", "rsync"),
        (("/usr/sbin/sshd -D -e -f {home}/sshd_config", "8022"),),
        f"{SSH} {{server}} sha256sum {{files}}/served; rm -rf {{home}}/copy;"
        f" rsync -a -e '{SSH}' {{server}}:{{files}}/served {{home}}/copy && sha256sum {{home}}/copy",
        (r"served$", r"copy$"),
        same=True,
        before=_ssh,
    ),
    Entry(
        "dnsmasq and dig",
        ("dnsmasq", "dig"),
        (
            (
                "dnsmasq -k -C /dev/null -u root --pid-file= --no-resolv --no-hosts -A /name.test/192.0.2.7 -p 5353",
                "udp 5353",
            ),
        ),
        "dig @{server} -p 5353 +short name.test; dig @{server} -p 5353 +tcp +short name.test",
        (r"^192\.0\.2\.7$",),
        same=True,
    ),
    Entry(
        "SIPp by UDP",
        ("sipp",),
        (("sipp -sn uas -i {server} -p 5060 -t u1 -nostdin -max_socket 1000", "udp 5060"),),
        "cd {home} && sipp -sn uac {server}:5060 -i {client} -t u1 -r 10 -m 10 -nostdin -max_socket 1000",
        (r"Successful call +\| +\d+ +\| +10 ",),
    ),
    Entry(
        "SIPp by TCP",
        ("sipp",),
        (("sipp -sn uas -i {server} -p 5060 -t t1 -nostdin -max_socket 1000", "5060"),),
        "cd {home} && sipp -sn uac {server}:5060 -i {client} -t tn -r 20 -m 20 -nostdin -max_socket 1000",
        (r"Successful call +\| +\d+ +\| +20 ",),
    ),
    *RUNTIMES,
    *MEDIA,
)
