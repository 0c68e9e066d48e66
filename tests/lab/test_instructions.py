"""How counts of instructions and of system calls are read, and what a comparison of them says."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/instructions"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/system"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import callgrind
import compare
import record
import system_calls

PROFILE = """\
# callgrind format
version: 1
positions: instr line
events: Ir
summary: 177

ob=(1) /target/program
fl=(1) main.rs
fn=(1) airdma_near
0x10 16 5
0x14 18 1
cob=(2) /lib/libqueue.so
cfi=(2) queue.rs
cfn=(2) Queue::push
calls=1 0x30 30
0x18 18 171
fi=(2)
0x1c 40 3

ob=(2)
fn=(2)
0x30 30 100
fi=(1)
0x10 26 50
cfn=(3) Queue::push'2
calls=2 0x30 30
0x38 27 21

fn=(3)
0x30 30 21
totals: 180
"""
LOCKED = {"/target/program": {0x10, 0x18}, "/lib/libqueue.so": {0x30}}


def numbers(near: float, far: float = 0.0, **functions: float) -> record.Record:
    return {
        "what": "",
        "near": near,
        "far": far,
        "packets": 1.0,
        "functions": functions,
        "allocator": 0.0,
        "locked": {},
    }


def locking(**functions: float) -> record.Record:
    return {**numbers(1000), "locked": functions}


def of(**scenarios: record.Record) -> record.Record:
    return {"environment": {}, "scenarios": scenarios}


class Reading(unittest.TestCase):
    def test_a_function_has_its_own_instructions_not_its_callees(self) -> None:
        profile = callgrind.by_function(PROFILE, LOCKED.__getitem__)
        self.assertEqual(profile.instructions, {"airdma_near": 9, "Queue::push": 171})

    def test_atomic_instructions_count_at_their_address_and_file(self) -> None:
        profile = callgrind.by_function(PROFILE, LOCKED.__getitem__)
        self.assertEqual(profile.locked, {"airdma_near": 5, "Queue::push": 121})

    def test_what_reads_and_writes_memory_in_one_is_atomic(self) -> None:
        listing = (
            "  10:\tlock cmpxchg %ecx,(%rdi)\n  1a:\txchg   %eax,(%rdi)\n"
            "  1c:\txchg   %ax,%ax\n 20:\tmov    %eax,(%rdi)\n"
        )
        self.assertEqual(callgrind.locked_in(listing), {0x10, 0x1A})


class Comparing(unittest.TestCase):
    def test_within_the_tolerance_nothing_is_said(self) -> None:
        verdict = compare.compare(of(write=numbers(1000, 50)), of(write=numbers(1020, 46)))
        self.assertEqual((verdict.grown, verdict.shrunk, verdict.other), ([], [], []))

    def test_who_has_grown_is_named_with_what_made_it_grow(self) -> None:
        before = of(write=numbers(1000, push=400, drain=600))
        verdict = compare.compare(before, of(write=numbers(1100, push=380, drain=600, lock=120)))
        self.assertEqual(verdict.shrunk, [])
        self.assertEqual(len(verdict.grown), 3)
        self.assertEqual(verdict.grown[0], "write: asking 1,000 -> 1,100 (+10.0%)")
        self.assertIn("+120.0  lock", verdict.grown[1])
        self.assertIn("-20.0  push", verdict.grown[2])

    def test_one_side_cannot_hide_behind_the_other(self) -> None:
        verdict = compare.compare(of(write=numbers(1000, 1000)), of(write=numbers(900, 1100)))
        self.assertEqual(verdict.grown, ["write: asking 1,000 -> 900 (-10.0%), serving 1,000 -> 1,100 (+10.0%)"])

    def test_a_scenario_without_a_number_is_not_passed_over(self) -> None:
        verdict = compare.compare(of(old=numbers(1)), of(new=numbers(1)))
        self.assertEqual(len(verdict.other), 2)

    def test_many_queue_pairs_may_not_cost_more_than_few(self) -> None:
        self.assertEqual(compare.not_flat(of(idle_1=numbers(1000), idle_4096=numbers(1009))), [])
        self.assertTrue(compare.not_flat(of(idle_1=numbers(1000), idle_4096=numbers(1011))))

    def test_a_new_lock_for_each_message_is_seen_among_many(self) -> None:
        verdict = compare.compare(of(write=locking(poll=2)), of(write=locking(poll=2, post=1)))
        self.assertEqual(verdict.grown, ["write: 2.00 -> 3.00 atomic instructions", "         +1.00  post"])

    def test_packets_take_no_lock_whatever_is_kept(self) -> None:
        self.assertEqual(compare.locks_per_packet(of(write_64k_sockets=locking(poll=1))), [])
        self.assertTrue(compare.locks_per_packet(of(write_64k_sockets=locking(poll=1, receive=2))))

    def test_who_allocates_is_named_whatever_is_kept(self) -> None:
        self.assertEqual(compare.allocations(of(write=numbers(1000))), [])
        self.assertTrue(compare.allocations(of(write={**numbers(1000), "allocator": 20.0})))

    def test_the_allocator_is_known_by_its_names(self) -> None:
        names = ["malloc", "_int_malloc", "__libc_calloc", "realloc", "free", "__rust_alloc", "_int_free"]
        self.assertTrue(all(record.ALLOCATOR.search(name) for name in names))
        self.assertFalse(record.ALLOCATOR.search("airdma_engine::pd::Pd::alloc_mw"))


class Table(unittest.TestCase):
    def test_the_table_that_is_kept_shows_the_numbers_that_are_kept(self) -> None:
        self.assertTrue(record.is_rendered())


SUMMARY = """\
    calls    errors syscall
--------- --------- ----------------
    30253     29000 recvmmsg
     2590           sendmmsg
        2         2 access
--------- --------- ----------------
    32845     29002 total
"""


class SystemCalls(unittest.TestCase):
    def test_polls_that_found_nothing_do_not_count(self) -> None:
        counted = system_calls.succeeded(SUMMARY)
        self.assertEqual(counted, {"recvmmsg": 1253, "sendmmsg": 2590, "access": 0})

    def test_a_call_that_strace_did_not_see_begin_is_one(self) -> None:
        self.assertEqual(system_calls.succeeded("        1           ???( ... )\n"), {")": 1})


if __name__ == "__main__":
    unittest.main()
