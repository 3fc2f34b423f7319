"""What an arm should lose: tokens that SGLang's own check misses, and the pages that the leak audit names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemma4_dumps.audit_findings import RULE, lost, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.expectation import Check, Expectation

_SUM = re.compile(r"leak detected! \[full\] total=(\d+), ((?:\w+=\d+(?:, )?)+)")


@dataclass(frozen=True)
class LeakReported(Expectation):
    """SGLang's own idle check ends the server, and its sum for the full pool is short by so many tokens."""

    tokens: int

    @property
    def text(self) -> str:
        return f"SGLang's check misses {number_of(self.tokens, 'token')}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        sums = [found for raised in outcome.raised if (found := _SUM.search(raised.message))]
        if not sums:
            return self.judge(False, "it reported no leak")
        total, parts = sums[0].groups()
        missing = int(total) - sum(int(part.split("=")[1]) for part in parts.split(", "))
        observed = f"{number_of(missing, 'token')} ({sums[0][0].removeprefix('leak detected! ')})"
        return self.judge(missing == self.tokens, observed, {"tokens_missing": missing})


@dataclass(frozen=True)
class LeakNamed(Expectation):
    """The audit's dump names one owner for all of the full pool's lost pages, and so many of each site."""

    by_site: Mapping[str, int]

    @property
    def text(self) -> str:
        return f"audit: one owner lost {self._sites(self.by_site)}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        found = [entry for entry in dumps_of(outcome) if entry.manifest is not None and entry.manifest.rule == RULE]
        if not found or found[0].manifest is None:
            return self.judge(False, "no readable dump of the leak audit")
        try:
            owners = [one for one in lost(suspects(Dump(found[0].path, found[0].manifest))) if one.pool == "full"]
        except DumpError as error:
            return self.judge(False, f"the dump cannot be read: {error}")
        good = len(owners) == 1 and owners[0].owner is not None and owners[0].by_site() == dict(self.by_site)
        numbers = {"dump": found[0].dump_id, "pages_lost": sum(one.pages for one in owners)}
        return self.judge(good, "; ".join(one.text() for one in owners) or "no page was lost", numbers)

    @staticmethod
    def _sites(by_site: Mapping[str, int]) -> str:
        return " and ".join(f"{pages} from {site}" for site, pages in by_site.items())
