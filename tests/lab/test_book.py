"""The test of the book notices what it is there to notice."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import book

PAGE = """\
# The `airdma recv --keep` [page](there.md), and more

[here](#the-airdma-recv---keep-page-and-more) and [there](there.md#twice-1), `[not](this.md)`

```
[nor](this.md)
```

## Twice
## Twice
"""


class Book(unittest.TestCase):
    def setUp(self) -> None:
        self.pages = {book.SUMMARY: "- [one](one.md)\n", book.DOCS / "one.md": PAGE}

    def test_links_are_not_taken_from_code(self) -> None:
        self.assertEqual(book.links(PAGE), ["there.md", "#the-airdma-recv---keep-page-and-more", "there.md#twice-1"])

    def test_headings_are_called_as_in_links(self) -> None:
        self.assertEqual(book.anchors(PAGE), {"the-airdma-recv---keep-page-and-more", "twice", "twice-1"})

    def test_each_page_is_named_once(self) -> None:
        self.assertEqual(book.missing_complaints(self.pages), [])
        self.pages[book.DOCS / "two.md"] = ""
        self.assertEqual(book.missing_complaints(self.pages), ["docs/SUMMARY.md does not name docs/two.md"])
        self.pages[book.SUMMARY] += "- [two](two.md)\n- [two](two.md)\n- [no](no.md)\n"
        wrong = ["docs/SUMMARY.md names docs/no.md, which is no page", "docs/SUMMARY.md names docs/two.md 2 times"]
        self.assertEqual(book.missing_complaints(self.pages), wrong)

    def test_links_lead_somewhere(self) -> None:
        pages = {
            book.DOCS
            / "start.md": "[a](operations.md) [b](nowhere.md) [c](#no) [d](https://example.org/no) [e](../README.md)\n"
        }
        wrong = ["docs/start.md: nowhere.md leads nowhere", "docs/start.md: docs/start.md has no heading for #no"]
        wrong.append("docs/start.md: ../README.md leads out of the book: name the file as code")
        self.assertEqual(book.link_complaints(pages), wrong)

    def test_counters_are_read_from_the_code(self) -> None:
        code = {
            "engine/src/counter_names.rs": (
                '    DropAir = "drop_air",\n    PortFailures = "port_failures",\n        "rx_short" => "drop_short",'
            ),
            "transport/src/counter.rs": '    AcksSent = "acks_sent",\n',
            "cm/src/counter.rs": '    GaveUp = "cm_gave_up",\n',
            "port/src/counters.rs": "    rx_short,\n    tx_sends,\n",
        }
        wanted = {"drop_air", "port_failures", "acks_sent", "cm_gave_up", "drop_short", "tx_sends"}
        self.assertEqual(book.counters(code), wanted)

    def test_the_reference_names_what_the_code_has(self) -> None:
        pages = {page: page.read_text(encoding="utf-8") for page in (book.DOCS / "reference").glob("*.md")}
        self.assertEqual(book.reference_complaints(pages), [])
        pages = {
            page: text.replace("| `AIRDMA_AIR`", "| `AIRDMA_WIND`").replace("| `acks_sent`", "| x")
            for page, text in pages.items()
        }
        wrong = ["docs/reference/variables.md lacks AIRDMA_AIR"]
        wrong.append("docs/reference/variables.md names AIRDMA_WIND, which the code lacks")
        wrong.append("docs/reference/counters.md lacks acks_sent")
        self.assertEqual(book.reference_complaints(pages), wrong)

    def test_a_test_that_was_renamed_is_found(self) -> None:
        text = "`crates/a.rs` `a_test_of_the_code`, `module::the_old_name_of_one`, `two_words`\n"
        pages = {book.DOCS / "security.md": text}
        wrong = ["docs/security.md names the_old_name_of_one, which no source has"]
        self.assertEqual(book.test_complaints(pages, {"a_test_of_the_code"}), wrong)


if __name__ == "__main__":
    unittest.main()
