"""What happens to a violation: a dump with its evidence, then whatever the mode says."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from gemma4_dumps.caps import DEFAULT_CAPS, RateLimit, StoreCaps
from gemma4_dumps.draft import DumpDraft
from gemma4_dumps.drop_counters import count_dropped
from gemma4_dumps.writer import WriteOutcome, write_dump
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.evidence import offences
from gemma4_runtime.settings import Mode

logger = logging.getLogger(__name__)

Action = Literal["logged", "contained", "trapped"]


class Guard:
    """Receives violations from the probes of one process. `context` gives the parts that are the same for all."""

    def __init__(
        self, mode: Mode, root: Path, context: Callable[[], Mapping[str, Any]], caps: StoreCaps = DEFAULT_CAPS
    ) -> None:
        self.mode = mode
        self.root = root
        self._context = context
        self._caps = caps
        self._rate = RateLimit(caps.logged_per_minute)
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self.look_first: list[Callable[[], None]] = []
        """Asked before a violation becomes a dump: each may find what that follows from, and reports it itself."""
        self._looking = False

    @property
    def bytes_per_dump(self) -> int:
        return self._caps.bytes_per_dump

    def report(
        self,
        violation: Violation,
        rule: str,
        site: str,
        describe: Callable[[], DumpDraft],
        act: Mode | None = None,
        action: Action | None = None,
        key: tuple[Any, ...] = (),
        once: bool = False,
    ) -> str | None:
        """Write a dump; in `trap` mode raise before the kernel runs, in the others go on.

        Args:
            violation: what the check found.
            rule: the probe's.
            site: where in SGLang it was found.
            describe: collects the evidence, as a draft without what holds for every dump: mode and action, versions,
                how the process was started. Whatever it meets must neither replace the trap nor stop a server in `log`.
            act: `log`, `contain` or `trap`; by default what the mode says outside CUDA graphs.
            action: what the dump says was done; by default `trapped` in trap mode and `logged` in the others.
            key: with rule, verdict and site, what makes it the same violation again: layer and role, say.
            once: of a violation that is not trapped, the first is enough.

        Returns:
            The dump's directory, or None if this violation was only counted or no dump could be written.

        Raises:
            TrappedViolation: in trap mode, always, also when the dump could not be written. What went wrong with the
                evidence is its cause, and an exception that was being handled stays in the chain.
        """
        act = act or self.mode.at(in_graph=False)
        signature = (rule, violation.verdict, site, *key)
        self._seen[signature] += 1
        seen = self._seen[signature]
        if act is not Mode.TRAP and self._only_counted(seen, once):
            return None
        self._look_first()
        action = action or ("trapped" if act is Mode.TRAP else "logged")
        draft, outcome = self._store(violation, rule, site, describe, seen, act, action)
        dump = str(outcome.path) if outcome.path else None
        problem = outcome.error or outcome.dropped_reason
        if act is Mode.TRAP:
            trapped = TrappedViolation(f"{draft.rule}: {draft.summary}", dump, problem)
            if outcome.cause is None:
                # Not `from None`: an exception that is being handled stays in sight.
                raise trapped
            raise trapped from outcome.cause
        logger.error("%s: %s [%s; seen %d times; dump: %s]", draft.rule, draft.summary, action, seen, dump or problem)
        return dump

    def _look_first(self) -> None:
        if self._looking:
            return
        self._looking = True
        try:
            for look in self.look_first:
                look()
        # Broad on purpose: the state is known to be bad, and the violation has to be told.
        except Exception:
            logger.exception("gemma4-triage: what was to be looked at before a violation could not be")
        finally:
            self._looking = False

    def _only_counted(self, seen: int, once: bool) -> bool:
        """Say whether this one is only counted.

        Where the server goes on, a fault repeats every step; the 1st, 2nd, 4th, 8th ... show that well enough.
        """
        if (once and seen > 1) or seen & (seen - 1):
            count_dropped(self.root, "repeated")
        elif not self._rate.admits():
            count_dropped(self.root, "rate")
        else:
            return False
        return True

    def _store(
        self,
        violation: Violation,
        rule: str,
        site: str,
        describe: Callable[[], DumpDraft],
        seen: int,
        act: Mode,
        action: Action,
    ) -> tuple[DumpDraft, WriteOutcome]:
        """Store the dump with all evidence, else with what the check itself found, else return why there is none."""
        try:
            draft = describe()
            return draft, write_dump(self.root, self._filled(draft, violation, seen, act, action), self._caps)
        # Broad on purpose, both: the state that is being described is known to be bad.
        except Exception as error:  # noqa: BLE001
            lost = error
        value = f", value {violation.first.value}" if violation.listed else ""
        draft = DumpDraft(
            rule=rule,
            verdict=violation.verdict,
            site=site,
            summary=f"{violation.verdict}{value}; evidence lost: {type(lost).__name__}: {lost}",
            offences=offences(violation.listed, table=""),
        )
        try:
            outcome = write_dump(self.root, self._filled(draft, violation, seen, act, action), self._caps)
        except Exception as error:  # noqa: BLE001
            outcome = WriteOutcome(error=f"{type(error).__name__}: {error}", cause=error)
        return draft, replace(outcome, cause=outcome.cause or lost)

    def _filled(self, draft: DumpDraft, violation: Violation, seen: int, act: Mode, action: Action) -> DumpDraft:
        return replace(
            draft,
            mode=act.value,
            action=action,
            offence_count=violation.count,
            launch_args=sys.argv,
            scalars={**draft.scalars, "seen": seen},
            **self._context(),
        )
