"""The architecture test notices what it is there to notice."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import architecture

TABLE = """\
| crate | may depend on |
| --- | --- |
| wire | |
| transport | wire |

| crate | says |
"""


def metadata(**crates: list[tuple[str, str | None]]) -> dict[str, Any]:
    """Packages with (dependency, kind) lists."""
    packages = [
        {"name": f"airdma-{name}", "dependencies": [{"name": on, "kind": kind} for on, kind in dependencies]}
        for name, dependencies in crates.items()
    ]
    return {"packages": packages}


class Architecture(unittest.TestCase):
    def setUp(self) -> None:
        self.allowed = architecture.parse_table(TABLE)

    def complaints(self, **crates: list[tuple[str, str | None]]) -> list[str]:
        return architecture.dependency_complaints(metadata(**crates), self.allowed)

    def test_table_ends_where_it_ends(self) -> None:
        self.assertEqual(self.allowed, {"wire": set(), "transport": {"wire"}})

    def test_allowed_dependencies_pass(self) -> None:
        transport = [("airdma-wire", None), ("airdma-sim", "dev"), ("thiserror", None)]
        self.assertEqual(self.complaints(wire=[], transport=transport), [])

    def test_an_arrow_upward_is_found(self) -> None:
        found = self.complaints(wire=[("airdma-transport", None)], transport=[])
        self.assertEqual(found, ["wire may not depend on transport (normal dependency)"])

    def test_the_simulator_is_for_tests_only(self) -> None:
        self.assertEqual(len(self.complaints(wire=[], transport=[("airdma-sim", None)])), 1)

    def test_a_crate_missing_from_the_table_is_found(self) -> None:
        self.assertEqual(len(self.complaints(wire=[], transport=[], radio=[])), 1)

    def test_a_crate_only_in_the_table_is_found(self) -> None:
        self.assertEqual(len(self.complaints(wire=[])), 1)

    def test_what_threads_share_is_found_except_in_tests(self) -> None:
        source = """
            struct Table {
                pub(crate) polls: AtomicU64,
                place: Box<[AtomicU8; 4]>,
                secret: Word,
                operation: AtomicOperation,
            }
            struct Real(AtomicPtr<c_void>);
            static NEXT: AtomicU32 = AtomicU32::new(1);
            shared!(LAST: AtomicU64 = AtomicU64::new(1));
            let local = AtomicBool::new(false);
        """
        tests = "\n#[cfg(test)]\nmod tests {\n    static DONE: AtomicBool = AtomicBool::new(false);"
        found = architecture.atomics(source + tests)
        self.assertEqual(found, {"polls", "place", "secret", "Real", "NEXT", "LAST"})

    def test_names_are_looked_for_in_the_table_only(self) -> None:
        markdown = "`first`\n## What is shared\n| `Cq::polls`, `NEXT` of ports | last |\n\n## Found\n`later`"
        self.assertEqual(architecture.shared_names(markdown), {"Cq", "polls", "NEXT"})

    def test_a_file_that_is_not_there_is_found_in_a_map(self) -> None:
        files = ["crates/port/src/udp.rs", "crates/port/src/udp/socket.rs", "tests/book.py"]
        page = (
            "`crates/port/src/udp.rs`, `socket.rs`, `crates/port/src/*.rs`, `python3 tests/book.py --all`, "
            "`ibv_post_send`, `/sys/a.c`"
        )
        self.assertEqual(architecture.path_complaints("MAP", page, files), [])
        page = "`crates/port/src/tcp.rs`\n`socket.rs`\n`tests/`, `gone.py`\n`crates/port/none/`"
        found = architecture.path_complaints("MAP", page, files)
        names = ("crates/port/src/tcp.rs", "socket.rs", "gone.py", "crates/port/none/")
        self.assertEqual(found, [f"MAP names {name}, which is not in the tree" for name in names])

    def test_a_function_that_is_not_in_its_file_is_found(self) -> None:
        header = "| station | file | function |\n| --- | --- | --- |\n"
        table = f"{header}| 1 | `a.rs` | `run`, `Port::stop` |\n\n| x | `a.rs` | `other` |\n"
        found = architecture.station_complaints("MAP", table, lambda _: "pub fn run() {}\nfn stopped() {}")
        self.assertEqual(found, ["MAP: Port::stop is not defined in `a.rs`"])
        row = "| station | file | function |\n| 1 | `x/a.rs`, `b.rs` | `run`, `stop` |\n"
        sources = {"x/a.rs": "fn run() {}", "x/b.rs": "fn stop() {}"}
        self.assertEqual(architecture.station_complaints("MAP", row, lambda file: sources[file]), [])

    def test_an_item_that_is_not_in_its_file_is_found(self) -> None:
        page = "`Operation` in `a.rs`, `open` in `a.rs`, `is` in `b.md`"
        found = architecture.item_complaints("MAP", page, lambda _: "pub enum Operation {}\n// open")
        self.assertEqual(found, ["MAP: open is not defined in a.rs"])

    def test_a_crate_that_is_not_in_the_picture_is_found(self) -> None:
        page = "```\nwire <- port\n```\n```\nlab\n```\n"
        found = architecture.picture_complaints(page, ["wire", "port", "lab"])
        self.assertEqual(found, ["the picture in ARCHITECTURE.md lacks crate lab"])

    def test_rooms_that_import_each_other_are_found(self) -> None:
        sources = {
            "lib.rs": "mod objects;\npub use objects::qp::{Qp, QpInit};\n",
            "objects.rs": "pub mod qp;",
            "objects/qp.rs": "use crate::worker::{Worker, Round};",
            "worker.rs": "use crate::tables::Table; // crate::objects",
            "worker/posted.rs": "use crate::{Error, QpInit};\n#[cfg(test)]\nmod tests {}",
            "tables.rs": "#[cfg(test)]\nmod tests { use crate::worker::Worker; }",
        }
        found = architecture.circle_complaints(architecture.room_imports(sources))
        self.assertEqual(
            found,
            [
                "engine: `objects` imports `worker` (objects/qp.rs), which imports `objects` in turn",
                "engine: `worker` imports `objects` (worker/posted.rs), which imports `worker` in turn",
            ],
        )
        sources["worker/posted.rs"] = ""
        self.assertEqual(architecture.circle_complaints(architecture.room_imports(sources)), [])


if __name__ == "__main__":
    unittest.main()
