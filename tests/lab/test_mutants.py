"""How mutants are planted, and which of them may survive."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mutants"))

import report
from plant import Mutant, alone, plant

SOURCE = """\
const MASK: u32 = 1 - 1;

impl Window {
    /// What is left { of it.
    pub const fn left(&self, of: [u8; { 1 }]) -> u32 {
        let open = '{'; // not this one {
        self.limit - self.sent
    }
}
"""


def mutant(number: int, line: int, text: str, replacement: str, function: bool = True) -> Mutant:
    """One that replaces `text` on a line of the source."""
    column = SOURCE.split("\n")[line - 1].index(text) + 1
    span = ((line, column), (line, column + len(text)))
    what = f"replace {text} with {replacement} in Window::left"
    source = SOURCE.split("\n")[line - 1].strip()
    place = ("Window::left", ((5, 5), (8, 6))) if function else (None, None)
    return Mutant(number, "crates/transport/src/window.rs", what, line, column, source, replacement, span, *place)


class Planting(unittest.TestCase):
    def test_a_function_gets_one_more_body_for_each_mutant(self) -> None:
        plus, product = mutant(7, 7, "-", "+"), mutant(8, 7, "-", "*")
        planted = plant(SOURCE, [plus, product], "crate::planted", set())
        self.assertIn("pub fn left(&self, of: [u8; { 1 }]) -> u32 { match crate::planted() {\n7 => {", planted.text)
        for line in ("self.limit + self.sent", "self.limit * self.sent", "self.limit - self.sent"):
            self.assertEqual(planted.text.replace("  ", " ").count(line), 1)
        self.assertEqual(planted.text.count("{ // not this one {"), 0)
        self.assertEqual(planted.text.count("'{'; // not this one {"), 3)
        for number, text in enumerate(planted.text.split("\n"), 1):
            if "self.limit *" in text:
                self.assertEqual(planted.at(number), product)
            if "self.limit - " in text:
                self.assertIsNone(planted.at(number))

    def test_what_must_stay_constant_is_left_to_be_built_alone(self) -> None:
        mask, minus = mutant(1, 1, "-", "+", function=False), mutant(2, 7, "-", "+")
        planted = plant(SOURCE, [mask, minus], "crate::planted", {"left"})
        self.assertEqual(planted.left_out, [mask, minus])
        self.assertEqual(planted.text, SOURCE)
        self.assertEqual(alone(SOURCE, mask), SOURCE.replace("1 - 1", "1 +  1"))


class Accepting(unittest.TestCase):
    def test_a_survivor_is_known_by_its_file_its_name_and_its_line(self) -> None:
        survivor = mutant(7, 7, "-", "+")
        outcomes = {survivor.name: {"outcome": "missed", "by": None}}
        entry = {"file": survivor.file, "mutant": "replace - with * in Window::left", "line": "self.limit - self.sent"}
        self.assertIn("so it goes", report.page([survivor], outcomes, [entry | {"reason": "so it goes"}]))
        for other in (
            {"line": "self.limit"},
            {"mutant": "replace + with *"},
            {"file": "crates/transport/src/windows.rs"},
        ):
            page = report.page([survivor], outcomes, [entry | {"reason": "so it goes"} | other])
            self.assertNotIn("so it goes", page)
            self.assertIn("a hole", page)


if __name__ == "__main__":
    unittest.main()
