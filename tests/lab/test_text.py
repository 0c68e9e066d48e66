"""The count of hard-to-read comments finds each pattern, and nothing in plain text."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import text

BAD = {
    "who": ["Who asked for something else gets nothing.", "A lock. Whoever has it runs the worker."],
    "nobody": ["Read by nobody.", "Somebody else has it."],
    "fragment": ["Of the last message.", "And what it answers.", "The first queue. Of those that wait."],
    "so many": ["Waits for so many bytes.", "It lasts so long."],
    "calque": ["It can nothing of it.", "The packet is to be sent.", "A READ is under way.", "It is looked for."],
    "people": [
        "Mourns a process.",
        "Buries what is left.",
        "Speaks for a process.",
        "What the dead left.",
        "Their will.",
    ],
}
GOOD = [
    "The peer that holds the lock sends it.",
    "Who sends this?",
    "It is one. Of the three limits, the lowest holds.",
    "So long as a packet is in flight, the timer runs; as many as fit, so much that none is left.",
    "The number of bytes to be sent. It will not wait.",
    "A request, and its answer. And so it ends.",
]


def found(suffix: str, source: str) -> list[tuple[str, int]]:
    return [(find.pattern, find.line) for find in text.find_all(suffix, source)]


class Text(unittest.TestCase):
    def test_each_pattern_is_found(self) -> None:
        for pattern, sentences in BAD.items():
            for sentence in sentences:
                self.assertEqual(found(".rs", f"/// {sentence}\nfn f() {{}}\n"), [(pattern, 1)], sentence)

    def test_plain_text_has_no_finds(self) -> None:
        for sentence in GOOD:
            self.assertEqual(found(".rs", f"//! {sentence}\n"), [], sentence)

    def test_sentences_are_read_across_lines(self) -> None:
        self.assertEqual(found(".rs", "/// A timer is under\n/// way.\nstruct A;\n"), [("calque", 1)])
        self.assertEqual(found(".rs", "// A lock. Held by\n// nobody.\n"), [("nobody", 2)])
        self.assertEqual(found(".rs", "/// First.\n///\n/// Of the second.\n"), [("fragment", 3)])

    def test_code_is_no_text(self) -> None:
        self.assertEqual(found(".rs", 'let x = "// nobody";\n'), [])
        self.assertEqual(found(".rs", "/// ```\n/// nobody();\n/// ```\n"), [])
        self.assertEqual(found(".rs", 'f(); // "x", by nobody\n'), [("nobody", 1)])

    def test_other_languages(self) -> None:
        self.assertEqual(
            found(".py", 'a = 1  # by nobody\nb = "nobody"\n"""Of b."""\n'), [("nobody", 1), ("fragment", 3)]
        )
        self.assertEqual(
            found(".c", "/* The first\n * is under way. */\nint x; // nobody\n"), [("calque", 2), ("nobody", 3)]
        )
        self.assertEqual(found(".sh", "#!/bin/sh\n# Whoever runs this\n"), [("who", 2)])

    def test_wide_lines_and_long_names(self) -> None:
        name = "a" * 61
        self.assertEqual(found(".rs", f"    // {'b ' * 50}\n"), [("wide", 1)])
        self.assertEqual(found(".rs", f"#[test]\n#[cfg(x)]\nfn {name}() {{}}\nfn {name}() {{}}\n"), [("name", 3)])
        self.assertEqual(found(".py", f"def test_{name}():\n    pass\n"), [("name", 1)])

    def test_limits_name_all_patterns(self) -> None:
        self.assertEqual(set(text.LIMITS), {*text.PATTERNS, "wide", "name"})


if __name__ == "__main__":
    unittest.main()
