"""A replay from beginning to end: rebuild, fp64, and each real backend that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_dumps.reader import Dump
from gemma4_triage.replay.backend_run import DEFAULT_TIMEOUT_S, REFERENCE, run_backend
from gemma4_triage.replay.compare import compare
from gemma4_triage.replay.damage import row_damages, worst_read
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.outcome import Replay
from gemma4_triage.replay.prepare import prepare
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.tables import INTENDED, VARIANTS, unknown_intentions


def replay(
    dump: Dump, options: ReplayOptions, backends: Sequence[str] = (REFERENCE,), timeout_s: float = DEFAULT_TIMEOUT_S
) -> Replay:
    """Rebuild the call of `dump`, run it in fp64 and on `backends`.

    Raises:
        NothingChecked: there is nothing in the dump to replay.
        EnvironmentCannot: it exceeds a cap.
        DumpError: it cannot be read.
    """
    call = rebuild(dump, options)
    prepared = prepare(dump, call, options)
    rows, expected = call.queries[0], prepared.reference[INTENDED]
    return Replay(
        call=call,
        values_from=prepared.values_from,
        scale=prepared.scale,
        pages=prepared.image.keys.shape[0],
        worst=worst_read(call),
        damages=tuple(row_damages(call)),
        unknown_intentions=unknown_intentions(call),
        reference={
            name: compare(prepared.reference[name], expected, rows, "float64")
            for name in reversed(VARIANTS)
            if name != INTENDED
        },
        backends=tuple(run_backend(prepared, name, timeout_s) for name in backends if name != REFERENCE),
    )
