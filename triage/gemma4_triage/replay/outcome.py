"""What a replay found, as plain records: the report's model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.compare import Difference
from gemma4_triage.replay.damage import Kind, RowDamage
from gemma4_triage.replay.tables import AS_DUMPED


class Status(StrEnum):
    """What became of one variant on one backend."""

    RAN = "ran"
    ILLEGAL_ACCESS = "illegal access"
    RAISED = "raised"
    KILLED = "killed"
    TIMED_OUT = "timed out"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class VariantOutcome:
    """What a backend made of one variant of a table.

    Attributes:
        detail: of what is not `ran`.
        from_table: against fp64 on the same table, whether the backend reads what the table says;
        from_intended: against fp64 on the table as it should have been.
    """

    variant: str
    status: Status
    detail: str = ""
    from_table: Difference | None = None
    from_intended: Difference | None = None

    @property
    def wrong(self) -> bool:
        """It failed, or a table that lies inside the buffer gives something else than fp64 does."""
        if self.status is Status.NOT_RUN:
            return False
        if self.from_table is None or self.from_intended is None:
            return True
        return not self.from_intended.fine if self.variant == AS_DUMPED else not self.from_table.fine


@dataclass(frozen=True)
class BackendOutcome:
    """What became of a backend.

    Attributes:
        refusal: why nothing was run, None if something was.
        missing: the environment lacks it.
        last_lines: of its stderr, if a variant failed.
    """

    backend: str
    seconds: float
    device: str = ""
    dtype: str = ""
    note: str = ""
    refusal: str | None = None
    missing: bool = False
    variants: tuple[VariantOutcome, ...] = ()
    last_lines: tuple[str, ...] = ()

    @property
    def wrong(self) -> bool:
        return any(variant.wrong for variant in self.variants)


@dataclass(frozen=True)
class Replay:
    """What a replay of attention says.

    Attributes:
        reference: each variant but the intended one in fp64, against the intended one.
        unknown_intentions: read entries of which the dump does not say what they should have been.
        pages: that were materialised.
        worst: what a kernel reads.
    """

    call: AttentionCall
    values_from: str
    scale: float
    pages: int
    worst: Kind
    damages: tuple[RowDamage, ...]
    unknown_intentions: int
    reference: Mapping[str, Difference]
    backends: tuple[BackendOutcome, ...]

    @property
    def fine(self) -> bool:
        """Nothing outside is read, the outputs are the intended ones, not by chance, and no backend failed."""
        return self.reads_right and not self.by_chance and not any(backend.wrong for backend in self.backends)

    @property
    def by_chance(self) -> bool:
        """The ids are of another pool than the buffer, and here happen to be the right ones."""
        return self.call.foreign and self.worst is Kind.RIGHT

    @property
    def reads_right(self) -> bool:
        outside = any(damage.outside for damage in self.damages)
        return not outside and self.reference[AS_DUMPED].fine

    def none_ran(self, asked: Iterable[str]) -> bool:
        """Return whether each backend that was asked for, the reference among them, ran nothing."""
        return {outcome.backend for outcome in self.backends if outcome.refusal is not None} == set(asked)
