"""What a dump has to say before the probe counts as having named the cause, and not merely as having fired."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gemma4_dumps.schema import Manifest

Proof = Callable[[Manifest], str | None]
"""Looks for one thing that equality cannot say. Returns None if the dump shows it, else what it shows instead."""


@dataclass(frozen=True)
class Finding:
    """evidence: dotted field of the manifest -> the value that it must hold, or a tuple of which it holds one.

    A number counts in a tuple: `offences.0.row`. A field that the manifest does not have counts as None.
    """

    probe: str
    rule: str
    verdict: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    proofs: tuple[Proof, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "evidence", MappingProxyType(dict(self.evidence)))

    @property
    def text(self) -> str:
        return f"{self.rule}, {self.verdict}"

    def contradictions(self, manifest: Manifest) -> tuple[str, ...]:
        """Say what the dump says otherwise, one phrase each; empty if it names this cause."""
        wanted = {"rule": self.rule, "verdict": self.verdict} | dict(self.evidence)
        found = {name: _look_up(manifest, name) for name in wanted}
        unequal = tuple(
            f"{name} is {found[name]!r}, not {_choices(want)}"
            for name, want in wanted.items()
            if found[name] not in (want if isinstance(want, tuple) else (want,))
        )
        # A proof reads what only the right kind of dump has.
        return unequal or tuple(text for proof in self.proofs if (text := proof(manifest)) is not None)


def _look_up(record: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        if isinstance(record, tuple):
            record = record[int(name)] if int(name) < len(record) else None
        else:
            record = record.get(name) if isinstance(record, Mapping) else getattr(record, name, None)
    return record


def _choices(want: Any) -> str:
    return " or ".join(repr(value) for value in want) if isinstance(want, tuple) else repr(want)
