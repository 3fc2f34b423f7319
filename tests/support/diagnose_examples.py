"""Incidents for the tests of diagnosis, dumps of the corpus and such with a few fields changed, and their evidence."""

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.schema import FileRecord, Layer, Offence, Provenance
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident, Ledger
from gemma4_triage.finding import Evidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.read import read_log

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "data" / "corpus_dumps"
LEAK_SAMPLE = "20261121T133240.124588Z_vm_r0_p8843_leak-audit_0001"
_ENTRY = re.compile(r"(\w+)\[([\d, ]+)\]")


def evidence_text(found: Iterable[tuple[str, Sequence[Finding]]]) -> str:
    """Return the findings of each case, and of each finding the fields and values that are its evidence."""
    lines: list[str] = []
    for case, findings in found:
        for finding in findings:
            lines.append(f"{case}: {finding.rule}, {finding.confidence.name}")
            lines += [f"  {piece.field} = {piece.value}" for piece in finding.evidence]
    return "\n".join(lines) + "\n"


def stands_there(evidence: Evidence, root: Path) -> bool:
    """Return whether the named field of the named source below `root` holds `evidence.value`: no reader is asked."""
    dump = root / evidence.source
    if not dump.is_dir():
        (file,) = root.rglob(evidence.source)
        return _same(_dotted(json.loads(file.read_text()), evidence.field), evidence.value)
    entry = _ENTRY.fullmatch(evidence.field)
    if entry is not None:
        index = tuple(int(number) for number in entry[2].split(","))
        return _same(load_file(dump / "tensors.safetensors")[entry[1]][index].item(), evidence.value)
    if evidence.field.startswith("events."):
        events = [json.loads(line) for line in (dump / "events.jsonl").read_text().splitlines()]
        return _same(_dotted(events, evidence.field.removeprefix("events.")), evidence.value)
    return _same(_dotted(json.loads((dump / "manifest.json").read_text()), evidence.field), evidence.value)


def _dotted(fields: Any, path: str) -> Any:
    for name in path.split("."):
        fields = fields[int(name)] if isinstance(fields, list) else fields.get(name)
        if fields is None:
            break
    return fields


def _same(found: Any, claimed: Any) -> bool:
    return type(found) is type(claimed) and found == claimed


def corpus_dump(case: str, verdict: str) -> Dump:
    """Return the first dump of a corpus case with this verdict."""
    dumps = (read_dump(path) for path in sorted((CORPUS / case).iterdir()) if (path / "manifest.json").exists())
    return next(dump for dump in dumps if dump.manifest.verdict == verdict)


def altered(dump: Dump, **changes: Any) -> Dump:
    """Return the same dump, with other fields in its manifest and no fault in its guards."""
    settings = dump.manifest.guards["settings"] | {"faults": []}
    rows = [{name: row[name] for name in row if name != "findings"} for row in dump.manifest.guards["patches"]]
    guards = dump.manifest.guards | {"settings": settings, "patches": rows}
    return Dump(dump.path, dump.manifest.model_copy(update={"guards": guards, **changes}))


def rewritten(folder: Path, dump: Dump, **changes: Any) -> Dump:
    """Return the dump in `folder`, whose files somebody has written anew, with a manifest that knows them."""
    files = {
        path.name: FileRecord(sha256=sha256(path.read_bytes()).hexdigest(), size_bytes=path.stat().st_size)
        for path in folder.iterdir()
    }
    return Dump(folder, altered(dump, files=files, **changes).manifest)


def changed(tmp_path: Path, dump: Dump, **tensors: Any) -> Dump:
    """Return the dump with other tensors; None takes one away."""
    folder = tmp_path / dump.path.name
    shutil.copytree(dump.path, folder)
    values = load_file(folder / "tensors.safetensors") | tensors
    values = {name: value for name, value in values.items() if value is not None}
    save_file(values, folder / "tensors.safetensors")
    layouts = json.loads((folder / "manifest.json").read_text())["tensors"]
    kept = {
        name: dump.manifest.tensors[name].model_copy(update={"shape": values[name].shape})
        for name in layouts
        if name in values
    }
    (folder / "manifest.json").unlink()
    return rewritten(folder, Dump(folder, dump.manifest), tensors=kept)


def of(*dumps: Dump, **more: Any) -> Incident:
    """Return an incident of these dumps, with the guard manifest of the last one."""
    records = tuple(Guards(dump.manifest.dump_id, "guards.", dump.manifest.guards) for dump in dumps[-1:])
    return Incident(**({"dumps": dumps, "guards": records} | more))


def offence(table: str, value: int, lower: int = 1, upper: int = 65, row: int = 0, column: int = 0) -> Offence:
    return Offence(table=table, row=row, column=column, value=value, lower=lower, upper=upper, request_slot=1)


def start_up(verdict: str, summary: str, **scalars: Any) -> Incident:
    """Return an incident of one dump, as the geometry probe would have written it."""
    dump = corpus_dump("draft-pool-too-small", "pool_too_small")
    fields = {"severity": "fatal", "found": 1, "expected": "16", "what": "x"} | scalars
    return of(altered(dump, verdict=verdict, summary=summary, role="draft", scalars=fields))


def allocator(case: str, found: str, rule: str, verdict: str, **changes: Any) -> Incident:
    return of(altered(corpus_dump(case, found), rule=rule, verdict=verdict, **changes))


def page_table(verdict: str, case: str = "page-past-the-end", found: str = "out_of_range", **changes: Any) -> Incident:
    return of(altered(corpus_dump(case, found), verdict=verdict, **changes))


def guards_only(faults: tuple[str, ...] = (), ended: bool = False, **row: Any) -> Incident:
    """Make a guarded run without dumps: a row of its manifest says something else, or its end that it failed."""
    probe = {"id": "page-table", "kind": "probe", "attached": True, "self_test": "fired"} | row
    fields = {"verified": True, "patches": [probe], "settings": {"faults": list(faults)}, "pid": 1}
    fields |= {"ended": {"how": "child failed", "why": "SIGQUIT"}} if ended else {}
    return Incident(guards=(Guards("1.json", "", fields),))


def crash_log(last_line: str = "KeyError: 'layer_9'", file: str = "scheduler.py") -> LogFacts:
    """Return a log of one batch line and a traceback that begins in line 2, ends like this and is from `file`."""
    text = (
        "[2026-01-01 00:00:01] Decode batch, #running-req: 8, full token usage: 0.50, swa token usage: 0.50\n"
        "[2026-01-01 00:00:02] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/srv/sglang/{file}", line 12, in step\n    call()\n{last_line}\n\n'
    )
    return read_log("server.log", [text.encode()])


def mutation(name: str) -> Incident:
    """Dumps that one corrupted entry of the live engine left; see tests/tools/trim_mutation_dumps.py."""
    return of(*(read_dump(path) for path in sorted((ROOT / "tests" / "data" / "mutation_dumps" / name).iterdir())))


def ended(message: str) -> Incident:
    """Return a scheduler that died of an assertion with this message."""
    return page_table("exception", rule="process-end", scalars={"exception": "AssertionError", "message": message})


# Rules about what the corpus does not inject, each with an incident that shows its cause.
OTHERS: dict[str, Incident] = {
    "target-not-translated": page_table("wrong_space", "swa-state-stale", "wrong_space", role="target"),
    "null-page-in-live-column": page_table("null_page_live", offences=(offence("swa_page_table", 0),)),
    "table-too-narrow": page_table("table_too_narrow", offences=(offence("swa_page_table", 9, 0, 6, column=5),)),
    "page-given-twice": allocator("swa-alloc-oob", "alloc_out_of_range", "swa-alloc-overlap", "alloc_overlap"),
    "page-freed-twice": allocator("free-of-page-zero", "free_out_of_range", "swa-double-free", "double_free"),
    "swa-page-shared": allocator("stale-mapping", "stale_mapping", "swa-mapping-alias", "pool_alias", site="x"),
    "freed-while-held": allocator("double-bookkeeping", "pool_leak", "leak-audit", "freed_in_use"),
    "held-outside-pool": allocator("double-bookkeeping", "pool_leak", "leak-audit", "held_out_of_range"),
    "pool-count-wrong": allocator("double-bookkeeping", "pool_leak", "leak-audit", "pool_unbalanced"),
    "pages-lost-between-calls": allocator(
        "alloc-on-one-pool", "pool_leak", "swa-lost-pages", "pool_leak", site="SWATokenToKVPoolAllocator.restore_state"
    ),
    "swa-pool-too-small": start_up("pool_too_small", "swa_slots: found 32, expected more than 48"),
    "pool-size-differs": start_up(
        "geometry_mismatch",
        "target allocator_slots_full: found 2576, expected 2560, in pages of 16, as it has buffers for",
    ),
    "parts-disagree": start_up("geometry_mismatch", "draft page_size: found 1, expected 16, as the target has it"),
    "guards-incomplete": guards_only(attached=False, reason="no such target"),
    "injected-fault": guards_only(faults=("swa-state-stale",)),
    "ledger-without-dump": Incident(ledgers=(Ledger("vm_p1.json", {"findings": {"pool_leak": 2}, "balanced": False}),)),
    "crash-without-dump": Incident(logs=(crash_log(),)),
    "ended-without-saying-why": guards_only(ended=True),
    "request-state-differs": page_table(
        "row_entry",
        rule="request-rows",
        provenance=Provenance(table_origin="req_to_token row"),
        scalars={"structure": "req_to_token row", "why": "changed", "value": 70, "expected": 32, "request_slot": 1}
        | {"token": 0},
        offences=(offence("rows", 70, lower=32, upper=33),),
    ),
    "accept-length-fell": page_table(
        "accept_length_fell",
        rule="accept-length",
        scalars={"accepted_before": 2.6, "verified_before": 90, "accepted_recently": 0.4},
    ),
    "no-draft-accepted": page_table(
        "no_draft_accepted", rule="accept-length", scalars={"accepted": 0.0, "verified": 128}
    ),
    "scheduler-exception": page_table("exception", rule="process-end"),
    "foreign-ids": page_table(
        "wrong_space", "full-draft-through-swa-map", "wrong_space", role="target", layer=Layer(id=5, type="full")
    ),
    "write-past-buffer": page_table("write_out_of_range", "swa-alloc-oob", "write_out_of_range"),
    "index-outside-buffer": page_table("out_of_range", offences=(offence("swa_page_table", 5000),)),
    "batch-length-wrong": mutation("batch-length-negative"),
    "slot-beyond-the-map": mutation("row-past-the-end"),
    "lock-released-twice": ended("dec_lock_ref on node with node.full_lock_ref=-1, node.id=10"),
    "tree-broken": mutation("node-names-its-old-parent"),
    "request-released-twice": mutation("released-again-with-overlap"),
    "counters-contradict": ended(
        "Unexpected overallocated KV cache, req.kv_committed_len=65, req.kv_allocated_len=111"
    ),
    "free-list-entry-wrong": mutation("swa-list-duplicate"),
    "free-that-loses": mutation("free-lost"),
    "request-slots-listed-wrong": mutation("request-slot-0-listed"),
    "mapping-entry-wrong": mutation("mapping-zero"),
    "mapping-cleared-wrong": mutation("mapping-cleared-to-minus-one"),
    "mapping-differs": mutation("mappings-of-a-row-swapped"),
    "cached-pages-moved": mutation("pages-of-nodes-swapped"),
    "holder-entry-wrong": mutation("tree-node-negative"),
    "counters-overlap": mutation("protected-zero"),
    "evicted-not-freed": mutation("evicted-too-far"),
    "eviction-names-no-page": mutation("eviction-of-page-zero"),
    "lock-left-over": mutation("lock-left-over"),
    "cache-insert-wrong": mutation("insert-frees-its-own-prefix"),
    "forward-mode-left-over": mutation("mode-of-a-verification-left"),
    "stop-token-missed": mutation("stop-token-inside-an-accepted-run"),
    "request-misplaced": mutation("running-request-waits-too"),
    "keys-not-stored": mutation("nothing-stored-by-a-verification"),
    "keys-overwritten": mutation("keys-of-a-cached-page-overwritten"),
    "sampling-differs": mutation("sampling-parameters-in-another-order"),
    "numbers-not-finite": mutation("keys-of-one-token-nan"),
    "cached-text-differs": mutation("key-without-the-first-new-token"),
    "token-differs": mutation("draft-taken-without-the-target"),
    "pages-leaked": of(read_dump(ROOT / "dumps" / "samples" / LEAK_SAMPLE)),
    "tables-exchanged": mutation("page-tables-exchanged"),
    "window-not-evicted": mutation("window-never-evicted-in-decode"),
    "unknown-verdict": page_table("invented_later"),
}
