"""Small dumps and logs of real runs that come with the package, each with the command that reads it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_SHARE = Path("share", "gemma4-triage")
_DUMPS, _LOGS = Path("dumps", "samples"), Path("tests", "data", "logs")


@dataclass(frozen=True)
class Sample:
    """One sample.

    Attributes:
        id: its name on the command line.
        file: a dump's folder below dumps/samples, or a log below tests/data/logs.
        title: what is to be seen in it.
        command: what reads it; PATH is where it lies.
    """

    id: str
    file: str
    title: str
    command: str

    @property
    def is_log(self) -> bool:
        """Return whether it is a log."""
        return self.file.endswith(".log")


SAMPLES: tuple[Sample, ...] = (
    Sample(
        "page-table",
        "20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001",
        "A draft reads the sliding-window buffer with page ids of the full pool.",
        "gemma4-triage diagnose PATH",
    ),
    Sample(
        "page-table-later",
        "20261121T133817.982072Z_vm_r0_p1291_page-table-bounds_0009",
        "The same defect, in a later step.",
        "gemma4-triage dumps show PATH",
    ),
    Sample(
        "leak",
        "20261121T133240.124588Z_vm_r0_p8843_leak-audit_0001",
        "Two pages belong to nobody and are not free.",
        "gemma4-triage audit PATH",
    ),
    Sample(
        "row-overflow",
        "20261122T141637.495736Z_vm_r0_p8751_batch-shapes_0001",
        "A request's last slots go into the row of the next request.",
        "gemma4-triage diagnose PATH",
    ),
    Sample(
        "stale-mapping",
        "20261123T173723.329001Z_vm_r0_p15923_swa-stale-mapping_0001",
        "An allocator's calls, up to the first wrong one.",
        "gemma4-triage replay PATH",
    ),
    Sample(
        "crash-log",
        "illegal-access.log",
        "A server dies of an illegal memory access, and no probe was on.",
        "gemma4-triage diagnose PATH",
    ),
    Sample(
        "starved-log",
        "swa-starved.log",
        "Requests are retracted again and again, since the sliding-window pool is too small.",
        "gemma4-triage logs PATH",
    ),
    Sample(
        "leak-log",
        "pool-leak.log",
        "SGLang's own check finds a leak and ends the server.",
        "gemma4-triage diagnose PATH",
    ),
    Sample("accept-log", "accept-drop.log", "The accept length of drafts falls.", "gemma4-triage logs PATH"),
    Sample("healthy-log", "healthy.log", "Nothing is wrong.", "gemma4-triage diagnose PATH"),
)


def place(sample: Sample) -> Path | None:
    """Return where a sample lies, in the source tree or where an install put it; None if it is in neither."""
    return shared_file(_LOGS if sample.is_log else _DUMPS, "samples", sample.file)


def shared_file(folder: Path, shared: str, name: str) -> Path | None:
    """Return a file that is no module, of the source tree's folder or of an install's shared one; None without."""
    # triage/ in the source tree, site-packages/ in an install
    parent = Path(__file__).resolve().parents[1]
    below = _SHARE / shared / name
    candidates = (parent.parent / folder / name, Path(sys.prefix) / below, parent / below)
    return next((path for path in candidates if path.exists()), None)
