"""Runs some of rdma-core's own tests, which know nothing of it, and writes down what became of each
as it ends.

Started by run.py in the lab with the library preloaded: driver.py SUITE REPORT LIMIT_S OPTIONS...
[-- TESTS...]. OPTIONS are those of rdma-core's run_tests.py. Without tests it lists them all. The
report has one JSON object a line: {"test": ID} when a test starts, {"test": ID, "result": ...,
"reason": ...} when it has ended. A test that takes longer than LIMIT_S ends the whole process,
wherever it hangs, and the report does without its end.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import sys
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

ErrorInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class Report(unittest.TestResult):
    """Writes results to a file at once: the next test may take the process down."""

    def __init__(self, file: TextIO, limit_s: float) -> None:
        super().__init__()
        self._file = file
        self._limit_s = limit_s
        self._ended: set[str] = set()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._write({"test": test.id()})
        faulthandler.dump_traceback_later(self._limit_s, exit=True)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._end(test, "pass", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._end(test, "skip", reason)

    def addFailure(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._end_by_exception(test, err)

    def addError(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        self._end_by_exception(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: ErrorInfo | None) -> None:
        if err is not None:
            self._end_by_exception(test, err)

    def _end_by_exception(self, test: unittest.TestCase, err: ErrorInfo) -> None:
        print(f"==== {test.id()}", file=sys.stderr)
        traceback.print_exception(*err)
        self._end(test, "fail", f"{type(err[1]).__name__}: {err[1]}")

    def _end(self, test: unittest.TestCase, result: str, reason: str) -> None:
        # A test may fail and then fail again in tearDown: the first counts.
        if test.id() not in self._ended:
            self._ended.add(test.id())
            self._write({"test": test.id(), "result": result, "reason": reason})

    def _write(self, entry: dict[str, Any]) -> None:
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()


def main() -> None:
    suite, report, limit_s, *rest = sys.argv[1:]
    options, names = (rest[: rest.index("--")], rest[rest.index("--") + 1 :]) if "--" in rest else (rest, [])
    # As run_tests.py does: the folder of the tests for their argument parser, its parent for the
    # package.
    sys.path[:0] = [f"{suite}/tests", suite]
    sys.argv[1:] = options
    importlib.import_module("args_parser").parser.parse_args()
    # What the tests were written for: from Python 3.14 on another way is the default, which copies
    # the test and its report.
    multiprocessing.set_start_method("fork")
    faulthandler.enable()
    package = importlib.import_module("tests")
    loader = unittest.TestLoader()
    with Path(report).open("a", encoding="utf-8") as file:
        if names:
            loader.loadTestsFromNames(names).run(Report(file, float(limit_s)))
            return
        for module in package.__test_modules__:
            tests = _flat(loader.loadTestsFromModule(module))
            file.writelines(json.dumps({"test": test.id()}) + "\n" for test in tests)


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for entry in suite:
        if isinstance(entry, unittest.TestSuite):
            yield from _flat(entry)
        else:
            yield entry


if __name__ == "__main__":
    main()
