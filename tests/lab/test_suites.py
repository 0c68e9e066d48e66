"""Suites of a Makefile run, those that compute beside the others, and the end says what failed."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import suites

MAKEFILE = """
waits: ; @while [ ! -e computed ]; do sleep 0.01; done; echo it has waited
computes: ; @touch computed; nice
fails: ; @echo 'error: no'; false
fails-beside: ; @echo 'FAILED: no'; false
"""


class Suites(unittest.TestCase):
    def test_a_suite_that_computes_runs_beside_the_others(self) -> None:
        status, output = run("waits", "computes")
        self.assertEqual(status, 0, output)
        self.assertIn("it has waited", output)
        self.assertIn("==== computes, beside the others\n19\n", output)
        self.assertRegex(output, r"(?m)^computes +\d+ +\d+  ok$")

    def test_a_suite_that_fails_is_named_and_the_others_run(self) -> None:
        status, output = run("fails", "fails-beside", "computes", "waits")
        self.assertEqual(status, 1, output)
        self.assertIn("it has waited", output)
        end = output[output.index("==== what failed in") :]
        self.assertIn("what failed in fails\nerror: no\n", end)
        self.assertIn("what failed in fails-beside\nFAILED: no\n", end)
        self.assertIn("make test: FAILED: fails, fails-beside\n", end)


def run(*names: str) -> tuple[int, str]:
    """Runs suites of `MAKEFILE`: exit status and output."""
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Makefile").write_text(MAKEFILE, encoding="ascii")
        with (
            mock.patch.object(suites, "ROOT", Path(folder)),
            mock.patch.object(suites, "COMPUTING", {"computes", "fails-beside"}),
            mock.patch.object(sys, "argv", ["suites.py", *names]),
            contextlib.redirect_stdout(output),
        ):
            status = suites.main()
    return status, output.getvalue()
