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
        pages = {book.DOCS / "start.md": "[a](operations.md) [b](nowhere.md) [c](#no) [d](https://example.org/no) [e](../README.md)\n"}
        wrong = ["docs/start.md: nowhere.md leads nowhere", "docs/start.md: docs/start.md has no heading for #no"]
        wrong.append("docs/start.md: ../README.md leads out of the book: name the file as code")
        self.assertEqual(book.link_complaints(pages), wrong)


if __name__ == "__main__":
    unittest.main()
