"""The catalogue: databases, language runtimes, and test suites of others."""

from __future__ import annotations

import subprocess
from pathlib import Path

from entry import Entry

_POSTGRES = Path("/usr/lib/postgresql/15/bin")
_AS_POSTGRES = "setpriv --reuid=postgres --regid=postgres --clear-groups"
_GRPC_SOURCE = Path(__file__).resolve().with_name("grpc_echo.cc")

NODE_SERVER = """\
const http = require('http'), fs = require('fs');
http.createServer((request, answer) => {
  const file = fs.createReadStream(process.argv[2] + request.url);
  file.on('error', () => { answer.statusCode = 404; answer.end(); });
  file.pipe(answer);
}).listen(8086, '0.0.0.0');
"""

NODE_CLIENT = """\
const http = require('http'), crypto = require('crypto');
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const get = (path) => new Promise((done, fail) =>
  http.get({ host: process.argv[2], port: 8086, path, agent }, (answer) => {
    const hash = crypto.createHash('sha256');
    answer.on('data', (data) => hash.update(data));
    answer.on('end', () => done(answer.statusCode + ' ' + hash.digest('hex')));
  }).on('error', fail));
const paths = Array.from({ length: 40 }, (_, at) => ['/served', '/small', '/small', '/none'][at % 4]);
Promise.all(paths.map(get)).then((all) => { console.log(all.join('\\n')); agent.destroy(); });
"""

NODE_DATAGRAMS = """\
const socket = require('dgram').createSocket('udp4');
const [role, host] = process.argv.slice(2);
const body = (at) => Buffer.alloc(1 + (at * 997) % 20000, at & 255);
const rounds = 100;
let at = 0, lost = 0, resend;
const ask = () => {
  socket.send(body(at), 8093, host);
  clearTimeout(resend);
  // One datagram is on the way at a time, which no queue is too short for.
  resend = setTimeout(() => { lost++; ask(); }, 2000);
};
socket.on('message', (data, from) => {
  if (role === 'serve') return socket.send(data, from.port, from.address);
  if (at > 0 && data.equals(body(at - 1))) return;
  if (!data.equals(body(at))) { console.log('damaged ' + at); process.exit(1); }
  if (++at < rounds) return ask();
  console.log(rounds + ' came back, ' + lost + ' lost');
  clearTimeout(resend);
  socket.close();
});
if (role === 'serve') socket.bind(8093, '0.0.0.0');
else ask();
"""


RESULTS = """\
import sys, unittest

def noted(result):
    return lambda self, test, *_: print(test.id(), result, file=results)

class Results(unittest.TestResult):
    addSuccess, addError, addFailure = noted("ok"), noted("ERROR"), noted("FAIL")
    addSkip, addExpectedFailure = noted("skipped"), noted("expected failure")
    addUnexpectedSuccess = noted("unexpected success")

    def addSubTest(self, test, subtest, error):
        if error:
            print(test.id(), "FAIL", file=results)

def each(suite):
    for test in suite:
        yield from each(test) if isinstance(test, unittest.TestSuite) else (test,)

module, path = sys.argv[1:]
found = each(unittest.defaultTestLoader.loadTestsFromName(module))
tests = unittest.TestSuite(test for test in found if "VSOCK" not in test.id())
with open(path, "w", encoding="utf-8") as results:
    tests.run(Results())
"""
"""Writes the result of each test to a file: what `unittest -v` prints, other threads write into."""


def _results(home: Path) -> None:
    (home / "results.py").write_text(RESULTS, encoding="ascii")


def _node(home: Path) -> None:
    (home / "server.js").write_text(NODE_SERVER, encoding="ascii")
    (home / "client.js").write_text(NODE_CLIENT, encoding="ascii")
    (home / "datagrams.js").write_text(NODE_DATAGRAMS, encoding="ascii")


def _postgres(home: Path) -> None:
    subprocess.run(["chown", "postgres:postgres", home], check=True)
    made = [*_AS_POSTGRES.split(), f"{_POSTGRES}/initdb", "-A", "trust", "-N", "-U", "postgres", "-D", f"{home}/data"]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd="/")
    with (home / "data" / "pg_hba.conf").open("a", encoding="ascii") as rules:
        rules.write("host all all all trust\n")


def _grpc(home: Path) -> None:
    asked = ["pkg-config", "--cflags", "--libs", "grpc++"]
    libraries = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["c++", "-std=c++17", "-o", f"{home}/echo", str(_GRPC_SOURCE), *libraries], check=True)


def _suite(module: str, file: str = "") -> Entry:
    """A module of CPython's tests: each test has the same result as without the shim. Those of
    VSOCK are left out: its ports are the machine's, and not a host's of the test. `file`: where it
    is, if not in its own.
    """
    return Entry(
        f"CPython's {module}",
        (f"/usr/lib/python3.11/test/{file or module + '.py'}",),
        (),
        f"cd {{home}} && /usr/bin/python3 results.py test.{module} results > said 2>&1; sort results",
        (r" ok$",),
        same=True,
        before=_results,
        timeout_s=240,
    )


RUNTIMES = (
    Entry(
        "PostgreSQL and pgbench",
        (str(_POSTGRES / "postgres"), "pgbench"),
        ((f"{_AS_POSTGRES} {_POSTGRES}/postgres -D {{home}}/data -h {{server}} -p 5433 -k {{home}} -F", "5433"),),
        "cd / && pgbench -h {server} -p 5433 -U postgres -i -q postgres"
        " && pgbench -h {server} -p 5433 -U postgres -n -c 4 -j 2 -t 50 postgres"
        " && psql -h {server} -p 5433 -U postgres -At -c 'select count(*) from pgbench_history' postgres",
        (r"actually processed: 200/200", r"^200$"),
        before=_postgres,
        timeout_s=60,
        other_users=True,
    ),
    Entry(
        "Node.js: http",
        ("/usr/bin/node",),
        (("/usr/bin/node {home}/server.js {files}", "8086"),),
        "/usr/bin/node {home}/client.js {server}",
        (r"^200 ", r"^404 "),
        same=True,
        before=_node,
    ),
    Entry(
        "Node.js: dgram",
        ("/usr/bin/node",),
        (("/usr/bin/node {home}/datagrams.js serve", "udp 8093"),),
        "/usr/bin/node {home}/datagrams.js ask {server}",
        (r"^100 came back, 0 lost$",),
        same=True,
        before=_node,
    ),
    Entry(
        "gRPC in C++",
        ("/usr/include/grpcpp/grpcpp.h", "c++", "pkg-config"),
        (("{home}/echo serve", "8094"),),
        "{home}/echo ask {server}",
        (r"^100 calls, 50 at once, \d+ bytes came back$",),
        same=True,
        before=_grpc,
    ),
    _suite("test_socket"),
    _suite("test_asyncio", "test_asyncio"),
)
