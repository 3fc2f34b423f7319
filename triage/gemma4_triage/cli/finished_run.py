"""What every command that runs engines does at its end: it writes verdict.json, shows it, and says where it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemma4_triage.terminal import emit_document, say, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.runs.record_file import RunRecord


def finish(record: RunRecord, folder: Path, as_json: bool) -> int:
    """Write and show a record. Returns the exit code. Raises OutputUnwritable."""
    from gemma4_triage.runs.record_file import write_record

    return show(record, write_record(record, folder), as_json)


def show(record: RunRecord, written: Path, as_json: bool) -> int:
    """Show a record that has been written, on stdout. Returns the exit code."""
    from gemma4_triage.runs.view import print_record

    if as_json:
        emit_document(record.model_dump(mode="json"))
    else:
        print_record(stdout_console(), record)
    say(f"Wrote {written}")
    return record.exit_code
