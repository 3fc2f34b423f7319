"""A scheduler that died of lengths which do not go together: of a prefix and its nodes, of a text, of new slots."""

from __future__ import annotations

import re

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence, Finding

_SHORT_PATH = re.compile(r"^\(.*, (\d+), (\d+)\)$")
_TOO_FEW = re.compile(r"^The expanded size of the tensor \((\d+)\) must match the existing size \((\d+)\)")
_WRITES_ROWS = ".assign_req_to_token_pool"
_OF_BATCH = ("req_pool_indices", "seq_lens", "seq_lens_cpu")
_SLOT, _TOKENS = 0, 1
"""Columns of the tensor `requests`."""


def of_lengths(rule: str, incident: Incident, dump: Dump) -> Finding | None:
    """Return what the dump of an exception says of such lengths; None if they go together."""
    if (lengths := _path_and_prefix(dump)) is not None:
        return _of_match(rule, incident, dump, *lengths)
    if (slots := _too_few_slots(dump)) is not None:
        return _of_slots(rule, incident, dump, *slots)
    if (beyond := _beyond_its_text(dump)) is not None:
        return _of_text(rule, incident, dump, *beyond)
    return _of_sizes(rule, incident, dump)


def _of_sizes(rule: str, incident: Incident, dump: Dump) -> Finding | None:
    """Return which lists of the batch have another size than it, where the exception came of no change of its size."""
    requests, scalars = tensor_or_none(dump, "requests"), dump.manifest.scalars
    count, frames = scalars.get("requests"), str(scalars.get("traceback"))
    if requests is None or not isinstance(count, int) or count != len(requests):
        return None
    if any(f".{name}:" in frames for name in ("filter_batch", "merge_batch")):
        # It may be half done.
        return None
    sizes = {name: len(found) for name in _OF_BATCH if (found := tensor_or_none(dump, name)) is not None}
    others = {name: size for name, size in sizes.items() if size != count}
    if not others or len(others) == len(sizes):
        return None
    name, size = next(iter(others.items()))
    named = re.findall(r"\((\d+)\)", str(scalars.get("message")))
    # What the exception says of sizes are these two.
    is_it = {str(size), str(count)} <= set(named)
    right = ", ".join(one for one in sizes if one not in others)
    has = "has" if len(others) == 1 else "have"
    how = "it was not filtered with those that have left" if size > count else "entries of it were left out"
    return Finding(
        rule=rule,
        structure=Structure.ROW_INDICES if name == "req_pool_indices" else Structure.BATCH_LENGTHS,
        defect=Defect.STALE if size > count else Defect.LOST,
        cause=(
            f"The scheduler died of {scalars.get('exception')} in {dump.manifest.site}: {', '.join(others)} of the "
            f"batch {has} {size} entries, and it has {count} requests, as {right} have. Most likely {how}."
        ),
        confidence=Confidence.LIKELY if is_it else Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.requests", "requests of the batch"),
            said(dump, f"tensors.{name}.shape.0", f"entries of {name}"),
            said(dump, "scalars.message", "what it died of"),
            said(dump, "site", "where"),
        ),
        advice=("Look at what changes the size of that list: filter_batch, merge_batch, prepare_for_decode.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _beyond_its_text(dump: Dump) -> tuple[int, int, int, int] | None:
    """Return row, slot and tokens of the first request that a prefill is to read beyond these, and up to where."""
    requests, lengths = tensor_or_none(dump, "requests"), tensor_or_none(dump, "seq_lens_cpu")
    frames = str(dump.manifest.scalars.get("traceback"))
    # The text of a diffusion model is longer by the block that it fills in.
    diffuses = any("dllm" in argument for argument in dump.manifest.launch_args)
    if requests is None or lengths is None or requests.ndim != 2 or ".prepare_for_extend:" not in frames or diffuses:
        return None
    if requests.shape[:1] != lengths.shape or requests.shape[1] <= _TOKENS:
        return None
    # Of a request that does not say, or that has no tokens of text, nothing is known.
    rows = enumerate(zip(requests[:, [_SLOT, _TOKENS]].tolist(), lengths.tolist(), strict=True))
    return next(((row, slot, tokens, length) for row, ((slot, tokens), length) in rows if 0 < tokens < length), None)


def _of_text(rule: str, incident: Incident, dump: Dump, row: int, slot: int, tokens: int, length: int) -> Finding:
    return Finding(
        rule=rule,
        structure=Structure.BATCH_LENGTHS,
        cause=(
            f"A prefill is to read the request in slot {slot} up to token {length}, and its prompt and "
            f"answer have {tokens}: where its part ends (extend_end) was counted beyond its text, by what there is "
            f"room for. The scheduler died of {dump.manifest.scalars.get('exception')} as slots were written for it."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            cell(dump, "seq_lens_cpu", (row,), "up to which token the prefill reads"),
            cell(dump, "requests", (row, _TOKENS), "tokens of its prompt and answer"),
            said(dump, "scalars.message", "what it died of"),
            said(dump, "site", "where"),
        ),
        advice=(
            "Look at what ends a prompt's part: add_one_req and add_chunked_req (the smaller one of what is left of it "
            "and of what there is room for), init_next_round_input.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _path_and_prefix(dump: Dump) -> tuple[int, int] | None:
    """Return how many slots the path to a request's node has, and how long its prefix is, where that is longer."""
    found = _SHORT_PATH.search(str(dump.manifest.scalars.get("message")))
    if found is None or not dump.manifest.site.endswith("prefix_device_indices"):
        return None
    path, prefix = int(found[1]), int(found[2])
    return (path, prefix) if path < prefix else None


def _of_match(rule: str, incident: Incident, dump: Dump, path: int, prefix: int) -> Finding:
    # A match without a node that can be used gives the root, whose path has nothing.
    at_root = path == 0
    return Finding(
        rule=rule,
        structure=Structure.REQUEST_COUNTERS if at_root else None,
        cause=(
            f"A match of the prefix cache gave a request a prefix of {prefix} tokens, and the nodes up to the one that "
            f"it gave have {path}: "
            + (
                "no node can be used, and the length counts those that the match walked over."
                if at_root
                else "the length counts nodes behind the last one that can be used, or the node is another one."
            )
        ),
        confidence=Confidence.LIKELY if at_root else Confidence.POSSIBLE,
        evidence=(
            said(dump, "scalars.message", "the request, slots of the path to its node, tokens of its prefix"),
            said(dump, "site", "where the two were held against each other"),
        ),
        advice=(
            "Look at where a match ends (match_prefix, best_match_device_node): the length goes as far as the last "
            "node that every pool can use, and no node behind it is counted.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


def _too_few_slots(dump: Dump) -> tuple[int, int] | None:
    """Return how many new slots a request was to get, and how many were left, as they were written into the rows."""
    found = _TOO_FEW.search(str(dump.manifest.scalars.get("message")))
    frames = str(dump.manifest.scalars.get("traceback")).rpartition(".alloc_for_spec_decode:")
    if found is None or not frames[1] or _WRITES_ROWS not in frames[2]:
        return None
    wanted, left = int(found[1]), int(found[2])
    return (wanted, left) if left < wanted else None


def _of_slots(rule: str, incident: Incident, dump: Dump, wanted: int, left: int) -> Finding:
    return Finding(
        rule=rule,
        structure=Structure.ALLOCATION,
        cause=(
            f"Ahead of a speculative step each request of the batch gets slots up to what the step may need. One was "
            f"to get {wanted} of those that had been allocated for all of them together, and {left} were left: fewer "
            f"were asked for (num_needed_tokens) than the ranges of the rows hold (from kv_allocated_len on), as where "
            f"the sum leaves requests out, or one range is longer than it was counted."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "scalars.message", "how many slots were to be written, and how many were left"),
            said(dump, "scalars.traceback", "where, outermost first"),
            said(dump, "scalars.requests", "requests of the batch, which the tensor `requests` shows"),
        ),
        advice=(
            "Look at what counts the slots of a step: page_aligned_decode_alloc_lens, for each request from what it "
            "has (kv_allocated_len) to what it is to have, and the sum of these, by which alloc_for_spec_decode asks.",
            "On a GPU the kernel that writes the rows looks at no length: there it reads on behind the list.",
        ),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )
