"""What an arm should leave behind: a dump that says why, or no dump and clean pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.store import DumpStore
from gemma4_dumps.wording import number_of
from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.expectation import Check, Expectation


@dataclass(frozen=True)
class WritesDump(Expectation):
    """At least one readable dump, and the newest one says this. The spaces are of probes that follow page ids."""

    rule: str
    verdict: str
    table_space: str = "unknown"
    buffer_space: str = "unknown"

    @property
    def text(self) -> str:
        return f"dump: {_described(self.rule, self.verdict, self.table_space, self.buffer_space)}"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        entries = dumps_of(outcome)
        manifest = next((entry.manifest for entry in entries if entry.manifest is not None), None)
        if manifest is None:
            problems = "; ".join(f"{entry.dump_id}: {entry.problem}" for entry in entries)
            return self.judge(False, f"no readable dump{f' ({problems})' if problems else ''}")
        origin = manifest.provenance
        found = (manifest.rule, manifest.verdict, origin.table_space, origin.buffer_space)
        good = found == (self.rule, self.verdict, self.table_space, self.buffer_space)
        numbers: dict[str, Any] = {"dump": manifest.dump_id, "offences": manifest.offence_count}
        if manifest.offences:
            numbers |= {"page": manifest.offences[0].value, "pages_in_buffer": manifest.offences[0].upper}
        observed = _described(*found)
        return self.judge(good, observed, numbers)


@dataclass(frozen=True)
class WritesNoDump(Expectation):
    """No probe found anything, and no dump of any state lies in the arm's folder."""

    @property
    def text(self) -> str:
        return "no violation, no dump"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        entries = dumps_of(outcome)
        trapped = outcome.first("TrappedViolation")
        observed = number_of(len(entries), "dump") + (f", {trapped.message}" if trapped else "")
        return self.judge(not entries and trapped is None and outcome.ending is Ending.COMPLETED, observed)


@dataclass(frozen=True)
class IdleClean(Expectation):
    """SGLang's idle leak checker ran and was content, flush_cache succeeded, and no pool holds a token after it."""

    @property
    def text(self) -> str:
        return "idle leak check clean"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        if outcome.result is None:
            return self.judge(False, "the arm did not get that far")
        idle = outcome.result.idle
        leaks = [raised.message for raised in outcome.raised if "leak" in raised.message.lower()]
        good = idle.leak_checker_ran and idle.flush_succeeded and idle.used_tokens_after_flush == 0 and not leaks
        observed = (
            f"checker {'ran' if idle.leak_checker_ran else 'did not run'}, "
            f"flush {'succeeded' if idle.flush_succeeded else 'failed'}, "
            f"{number_of(idle.used_tokens_after_flush, 'token')} in use{''.join(f', {leak}' for leak in leaks)}"
        )
        return self.judge(good, observed, {"used_tokens_after_flush": idle.used_tokens_after_flush})


def _described(rule: str, verdict: str, table_space: str, buffer_space: str) -> str:
    spaces = (table_space, buffer_space)
    return f"{rule}, {verdict}" + ("" if set(spaces) == {"unknown"} else ", {} ids in the {} buffer".format(*spaces))


def dumps_of(outcome: Outcome) -> list[DumpEntry]:
    """Return the arm's dumps, newest first, torn ones too."""
    return DumpStore(outcome.dumps).list()
