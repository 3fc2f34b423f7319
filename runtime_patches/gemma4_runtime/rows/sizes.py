"""What `request-rows` asks of a batch's lists: each has as many entries as the batch has requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.report import LENGTH, ROW_INDEX, report_wrong
from gemma4_runtime.rows.sampling import COLUMNS, PARAMETERS

_ROWS, _LENGTHS = ("req_pool_indices", "req_pool_indices_cpu"), ("seq_lens", "seq_lens_cpu", "orig_seq_lens")
_STRUCTURES = dict.fromkeys(_ROWS, Structure.ROW_INDICES) | dict.fromkeys(_LENGTHS, Structure.BATCH_LENGTHS)


def check_sizes(scheduler: Any, batch: Any, site: str) -> bool:
    """Report lists of a batch that have more or fewer entries than it has requests, and say whether there are any.

    A batch without requests keeps its lists, and one of beams has rows beyond its requests.

    Args:
        scheduler: Whose batch it is.
        batch: A `ScheduleBatch`.
        site: The function of SGLang's at which it was seen.
    """
    requests = batch.reqs or ()
    if not requests or any(getattr(one, "beam_group", None) is not None for one in requests):
        return False
    sizes = dict(_sizes(batch))
    others = [name for name, size in sizes.items() if size != len(requests)]
    if not others:
        return False
    name, right = others[0], [name for name in sizes if name not in others]
    size, structure = sizes[name], _STRUCTURES.get(name, PARAMETERS)
    wrong = (WrongEntry("entries", 0, 0, size, len(requests)),)
    kind = Defect.STALE if size > len(requests) else Defect.LOST
    had = {"as_before": None, "lists": ",".join(others), "lists_right": ",".join(right)}
    summary = f"{name} of a batch has {size} entries, and the batch {len(requests)} requests"
    slots = [held(one).req_pool_idx for one in requests]
    verdict = ROW_INDEX if structure is Structure.ROW_INDICES else LENGTH
    report_wrong(scheduler, wrong, verdict, site, structure, [kind], None, slots, had=had, summary=summary)
    return True


def _sizes(batch: Any) -> Iterator[tuple[str, int]]:
    """Yield the name and the number of entries of each list that the batch has."""
    sampling = getattr(batch, "sampling_info", None)
    for owner, names in ((batch, (*_ROWS, *_LENGTHS)), (sampling, COLUMNS)):
        for name in names:
            listed: Any = getattr(owner, name, None)
            if getattr(listed, "ndim", 0):
                yield name, len(listed)
