"""Writes docs/reliability/mutants.md from the outcomes and from `accepted.toml`, where the reason
of each mutant that may survive stands.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from plant import Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "reliability" / "mutants.md"
ACCEPTED = Path(__file__).resolve().parent / "accepted.toml"

HEAD = """# Mutants

Does the net catch fish? cargo-mutants lists what could be wrong in `transport` and in the engine's memory: an operator, a
result, a missing arm. `make mutants` plants each, runs tests until one fails, the cheapest first, and writes this page from
what it saw. What survives stands below, with the reason from `tests/mutants/accepted.toml`.
"""


def write(mutants: list[Mutant], outcomes: dict[str, dict[str, Any]], check: bool) -> int:
    """Writes the page. With `check`, says only whether it is what is written."""
    text = page(mutants, outcomes, tomllib.loads(ACCEPTED.read_text(encoding="utf-8"))["survivor"])
    if check:
        same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
        print(
            "mutants: docs/reliability/mutants.md "
            + ("is up to date" if same else "is not what `make mutants` would write")
        )
        return 0 if same else 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(text, encoding="utf-8")
    print(summary(mutants, outcomes))
    return 0


def summary(mutants: list[Mutant], outcomes: dict[str, dict[str, Any]]) -> str:
    counts = Counter(outcomes[mutant.name]["outcome"] for mutant in mutants if mutant.name in outcomes)
    caught = counts["caught"] + counts["timeout"]
    viable = caught + counts["missed"]
    share = f"{100 * caught / viable:.1f} %" if viable else "-"
    return (
        f"{sum(counts.values())} of {len(mutants)} mutants were run: {counts['unviable']} do not compile, {viable} do; of "
        f"these {caught} were caught ({share}; {counts['timeout']} of them because a test did not end), {counts['missed']} survived."
    )


def page(mutants: list[Mutant], outcomes: dict[str, dict[str, Any]], accepted: list[dict[str, str]]) -> str:
    parts = [
        HEAD,
        summary(mutants, outcomes),
        "",
        *_files(mutants, outcomes),
        "",
        *_stages(outcomes),
        "",
        *_survivors(mutants, outcomes, accepted),
    ]
    return "\n".join(parts) + "\n"


def _files(mutants: list[Mutant], outcomes: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        "| file | mutants | run | viable | caught | of them timeouts | survived | caught % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for file in [*sorted({mutant.file for mutant in mutants}), "all"]:
        of_file = [mutant.name for mutant in mutants if file in ("all", mutant.file)]
        counts = Counter(outcomes[name]["outcome"] for name in of_file if name in outcomes)
        caught = counts["caught"] + counts["timeout"]
        viable = caught + counts["missed"]
        share = f"{100 * caught / viable:.1f}" if viable else "-"
        name = file.removeprefix("crates/").replace("/src/", ": ")
        rows.append(
            f"| {name} | {len(of_file)} | {sum(counts.values())} | {viable} | {caught} | {counts['timeout']} | {counts['missed']} | {share} |"
        )
    return rows


def _stages(outcomes: dict[str, dict[str, Any]]) -> list[str]:
    first = Counter(one["by"] for one in outcomes.values() if one["by"])
    rows = ["| caught first by | mutants |", "|---|--:|"]
    return rows + [f"| {name} | {count} |" for name, count in first.most_common()]


def _survivors(mutants: list[Mutant], outcomes: dict[str, dict[str, Any]], accepted: list[dict[str, str]]) -> list[str]:
    missed = [mutant for mutant in mutants if outcomes.get(mutant.name, {}).get("outcome") == "missed"]
    lines = []
    for mutant in sorted(missed, key=lambda mutant: (mutant.file, mutant.line, mutant.column, mutant.what)):
        reason = next((one["reason"] for one in accepted if _is(one, mutant)), "**no reason is known: a hole**")
        lines.append(f"- `{mutant.name}`: {reason}")
    return ["## Survivors", "", *(lines or ["None."])]


def _is(one: dict[str, str], mutant: Mutant) -> bool:
    """Whether an entry of accepted.toml means this mutant: by the text of its line, for numbers of
    lines change.
    """
    fields = (("file", mutant.file), ("mutant", mutant.what), ("line", mutant.source))
    return all(_fits(one.get(key, "*"), text) for key, text in fields)


def _fits(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
