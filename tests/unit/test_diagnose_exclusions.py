"""What would rule a cause out is asked before the rule speaks: each is made true on a dump on which the rule spoke."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose_examples import CORPUS, OTHERS, altered, changed, corpus_dump, of, offence, rewritten
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.schema import Graph, Layer, Provenance
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding
from known_causes import CAUSES

BY_ID = {rule.id: rule for rule in RULES}
COLUMNS = (
    *("page", "pool", "fault", "places", "owner_slot", "owner_generation"),
    *("alloc_site", "alloc_step", "free_site", "free_step", "peer", "last_event"),
)
Change = Callable[[Path, Dump], Dump]


def spoken_of(name: str) -> Incident:
    """Return an incident on which the rule speaks: of the corpus, or of those that it does not inject."""
    if name in OTHERS:
        return OTHERS[name]
    case = next(case for case, cause in CAUSES.items() if cause == name)
    return of(*(read_dump(path) for path in sorted((CORPUS / case).iterdir()) if (path / "manifest.json").exists()))


def with_fields(**fields: Any) -> Change:
    return lambda _, dump: altered(dump, **fields)


def with_scalars(**scalars: Any) -> Change:
    return lambda _, dump: altered(dump, scalars=dump.manifest.scalars | scalars)


def with_suspects(**columns: int | str) -> Change:
    """Put these values into every row of an audit's table; a word stands for its number."""

    def change(folder: Path, dump: Dump) -> Dump:
        if "suspects" not in dump.manifest.tensors:
            return dump
        table = dump.tensor("suspects").copy()
        for name, value in columns.items():
            words = str(dump.manifest.scalars.get({"fault": "faults", "pool": "pools"}.get(name, ""))).split(",")
            table[:, COLUMNS.index(name)] = words.index(value) if isinstance(value, str) else value
        return changed(folder, dump, suspects=table)

    return change


def with_another_suspect(pool: str, fault: str) -> Change:
    """Add a row of the same page, out of place in another way."""

    def change(folder: Path, dump: Dump) -> Dump:
        if "suspects" not in dump.manifest.tensors:
            return dump
        table = dump.tensor("suspects")
        row = table[:1].copy()
        row[0, COLUMNS.index("pool")] = str(dump.manifest.scalars["pools"]).split(",").index(pool)
        row[0, COLUMNS.index("fault")] = str(dump.manifest.scalars["faults"]).split(",").index(fault)
        return changed(folder, dump, suspects=np.concatenate([table, row]))

    return change


def with_free_pages(free: bool) -> Change:
    """Put every page that the dump lists onto the free lists, or none."""

    def change(folder: Path, dump: Dump) -> Dump:
        page_size = dump.manifest.page_size or 1
        pages = [bad.value // (1 if bad.table == "pages_lost" else page_size) for bad in dump.manifest.offences]
        listed = np.array(pages if free else [-1], dtype=np.int64)
        return changed(folder, dump, free_pages_full=listed, free_pages_swa=listed)

    return change


def with_equation(pool: str) -> Change:
    """Let the parts of a pool add up."""

    def change(_: Path, dump: Dump) -> Dump:
        scalars = dict(dump.manifest.scalars)
        sides = ("available", "evictable", "protected", "session_held", "uncached")
        return altered(dump, scalars=scalars | {f"{pool}_total": sum(int(scalars[f"{pool}_{side}"]) for side in sides)})

    return change


def with_the_page_as_its_own(folder: Path, dump: Dump) -> Dump:
    """Let every SWA page serve the full page of its slot."""
    slots = dump.tensor("slots")
    return changed(folder, dump, page_states=np.stack([slots[:, 0], slots[:, 0] // dump.manifest.page_size], axis=1))


def beside(dump: Dump) -> Callable[[Incident], Incident]:
    """Add a dump, of the same server."""
    return lambda incident: replace(incident, dumps=(*incident.dumps, altered(dump)))


def with_calls(*calls: dict[str, Any]) -> Change:
    """Let these be the calls, or the ledger's events, that the dump has."""

    def change(folder: Path, dump: Dump) -> Dump:
        made = folder / dump.path.name
        shutil.copytree(dump.path, made)
        (made / "manifest.json").unlink()
        (made / "events.jsonl").write_text("".join(f"{json.dumps(call)}\n" for call in calls))
        return rewritten(made, dump)

    return change


GIVEN = {"call": "alloc_decode", "seq_lens": [1], "last_loc": [-1], "full": [[16, 1]], "swa": [[1040, 1]]}
FREED = {"call": "free", "full": [[16, 1]], "swa": [[1040, 1]]}
GOES_ON = {"call": "alloc_decode", "seq_lens": [2], "last_loc": [16], "full": [[17, 1]], "swa": [[1041, 1]]}


def lost_pages() -> Dump:
    return corpus_dump("alloc-on-one-pool", "pool_leak")


def out_of_pool() -> Dump:
    return corpus_dump("swa-alloc-oob", "alloc_out_of_range")


def of_target() -> Dump:
    return altered(corpus_dump("swa-state-stale", "wrong_space"), role="target", dump_id="of the target")


ITS_OWN = "SWAKVPool@1 on TRTLLMHAAttnBackend inside target_kv_pool_view"
TRUE: dict[tuple[str, str], Change | Callable[[Incident], Incident]] = {
    ("allocator-past-pool-end", "the slot lies"): with_fields(offences=(offence("slots", 40),)),
    ("batch-length-wrong", "the batch is no decode"): with_fields(forward_mode="EXTEND"),
    ("counters-contradict", "the server drafts"): with_fields(launch_args=("--speculative-algorithm", "EAGLE")),
    ("counters-overlap", "another page"): with_another_suspect("full", "nowhere"),
    ("cached-pages-moved", "the pages were given back"): lambda folder, dump: cached_anew(folder, dump),
    ("draft-reads-translated-ids", "the layers"): with_fields(layer=Layer(id=5, type="sliding")),
    ("foreign-ids", "the ids"): with_fields(provenance=Provenance(table_space="full", buffer_space="full")),
    ("guards-incomplete", "another manifest"): lambda incident: with_a_whole_manifest(incident),
    ("index-outside-buffer", "every entry"): with_fields(offences=(offence("swa_page_table", 40),)),
    ("mapping-differs", "the full page"): with_suspects(free_step=9),
    ("target-not-translated", "the layers"): with_fields(layer=Layer(id=5, type="full")),
    ("window-one-too-wide", "the release"): with_fields(versions={"sglang": "0.5.23"}),
    ("write-past-buffer", "every slot"): with_fields(offences=(offence("swa_out_cache_loc", 1000, upper=1040),)),
    ("draft-pool-too-small", "the draft's pool"): with_scalars(found=2560),
    ("draft-swa-state-stale", "the dump has"): lambda _, dump: altered(
        dump, provenance=dump.manifest.provenance.model_copy(update={"table_origin": "metadata.swa_page_table"})
    ),
    ("draft-swa-state-stale", "the same is seen"): beside(of_target()),
    ("evicted-not-freed", "the ledger saw"): with_suspects(alloc_step=1, free_step=2),
    ("evicted-page-counted", "the SWA pool's equation"): with_equation("swa"),
    ("failed-allocation-keeps-pages", "the pages are"): with_free_pages(True),
    ("finished-requests-not-released", "the ledger saw"): with_suspects(alloc_step=1, free_step=2),
    ("free-list-entry-wrong", "an allocator's dump"): beside(lost_pages()),
    ("free-that-loses", "an allocator's dump"): beside(lost_pages()),
    ("holder-entry-wrong", "the lost page"): with_suspects(alloc_step=10_000),
    ("lock-left-over", "a page or a request slot"): with_another_suspect("requests", "nowhere"),
    ("mapping-entry-wrong", "another holds"): lambda folder, dump: freed_peer(folder, dump, "held_twice"),
    ("mapping-entry-wrong", "the full page"): lambda folder, dump: freed_peer(folder, dump),
    ("mapping-outlives-page", "the page of the SWA slot"): with_free_pages(False),
    ("page-given-twice", "the page was freed"): with_calls(GIVEN, FREED, GOES_ON),
    ("page-freed-twice", "the ledger"): lambda folder, dump: seen_by_an_audit(folder, dump),
    ("page-freed-twice", "the earlier free"): lambda folder, dump: held_by_an_audit(folder, dump),
    ("pages-lost-between-calls", "they are"): with_free_pages(True),
    ("pages-lost-between-calls", "the mapping"): beside(
        corpus_dump("deferred-free-after-replacement", "pool_leak"),
    ),
    ("parts-disagree", "both sides"): with_scalars(found="16"),
    ("pool-size-differs", "the allocator"): with_scalars(found="16"),
    ("pool-swap-missed-leaf", "the pool that"): lambda _, dump: altered(
        dump,
        scalars=dump.manifest.scalars | {"expected": dump.manifest.scalars.get("found")},
        extents=dump.manifest.extents | {"pages_in_buffer": 65},
    ),
    ("pool-swap-missed-leaf", "the draft's backend"): with_scalars(found=ITS_OWN),
    ("request-state-differs", "the value"): with_scalars(value=32),
    ("row-too-short", "no request"): with_scalars(longest=1),
    ("slot-beyond-the-map", "an allocator"): beside(out_of_pool()),
    ("swa-page-replaced-before-free", "full pages"): with_another_suspect("full", "nowhere"),
    ("swa-page-shared", "page_states"): with_the_page_as_its_own,
    ("swa-pool-too-small", "the pool has"): with_scalars(found="1024", expected="more than 48"),
    ("swa-pool-too-small", "a dump of this run"): with_fields(step=3),
    ("unassigned-page", "other values"): lambda _, dump: altered(
        dump, offences=(*dump.manifest.offences, offence("page_table", -7))
    ),
    ("write-locations-left-over", "CUDA graphs"): with_fields(graph=Graph(captured=True)),
    ("write-locations-left-over", "the batch is"): with_fields(role="target"),
}
"""By rule and how the sentence begins: what makes it true of the dumps on which the rule spoke."""
ELSEWHERE = {
    ("freed-while-held", "a node that"),
    ("freed-while-held", "the holder"),
    ("page-freed-twice", "a page that was free"),
    ("finished-requests-not-released", "a request runs"),
    ("holder-entry-wrong", "the whole row"),
    ("mapping-entry-wrong", "the full page was given"),
    ("pages-leaked", "their last owner still"),
    ("unset-slot-freed", "slots above"),
}
"""Made true on other dumps, in test_diagnose_premises.py, _contained.py, _mutations.py and _order_of_entries.py."""
UNLESS_PROVEN = {
    ("request-misplaced", "a part of SGLang"),
    ("pool-count-wrong", "the audit counts"),
    ("request-state-differs", "the window was given back"),
    ("cached-text-differs", "the key is right"),
    ("numbers-not-finite", "the forward that stored"),
    ("tree-broken", "the node has what it was given"),
    ("tree-broken", "the link is right"),
    ("tree-broken", "two requests with the same text"),
    ("token-differs", "the request's prompt or answer has"),
    ("null-page-in-live-column", "the row itself"),
    ("held-outside-pool", "the request's row was written"),
    ("held-outside-pool", "that page was handed out"),
    ("window-not-evicted", "its pages were given back"),
    ("request-state-differs", "the nodes have that order too"),
    ("allocator-past-pool-end", "a call before"),
    ("allocator-past-pool-end", "something wrote"),
    ("batch-length-wrong", "the lengths are right"),
    ("cache-insert-wrong", "the cache was to have"),
    ("evicted-not-freed", "it is the other"),
    ("evicted-page-counted", "the pages are at other places"),
    ("evicted-page-counted", "the pages without"),
    ("evicted-page-counted", "somebody gave"),
    ("finished-requests-not-released", "the pages were lost"),
    ("page-freed-twice", "the one call"),
    ("pages-lost-between-calls", "the group held them"),
    ("free-list-entry-wrong", "a call that"),
    ("freed-while-held", "the audit's table"),
    ("freed-while-held", "the pages were freed"),
    ("holder-entry-wrong", "the other of"),
    ("mapping-outlives-page", "another call"),
    ("null-page-in-live-column", "the request had"),
    ("null-page-in-live-column", "the request's row"),
    ("page-past-pool-end", "a stray value"),
    ("pages-leaked", "a session"),
    ("pages-leaked", "an eviction of all"),
    ("pages-leaked", "the row or the counts"),
    ("request-state-differs", "the cache counts"),
    ("request-state-differs", "the request has the slots"),
    ("request-state-differs", "the request was to get"),
    ("request-state-differs", "the request's own"),
    ("request-state-differs", "the row is what"),
    ("request-state-differs", "the two accounts"),
    ("row-not-translated", "the pools have"),
    ("swa-page-replaced-before-free", "the events show"),
    ("slot-beyond-the-map", "the mapping leads"),
    ("slot-beyond-the-map", "the row was right"),
    ("swa-page-shared", "the lists before"),
    ("table-too-narrow", "the other of"),
    ("token-differs", "the count is right"),
    ("tree-broken", "the exception came"),
    ("unassigned-page", "-1 was written"),
    ("verify-input-left-on-batch", "the state has"),
}
"""Not known unless the dump proves that they do not hold: no dump proves that they do."""


def cached_anew(folder: Path, dump: Dump) -> Dump:
    """Let each page have left the cache once, and been given to it again."""
    of_pages = np.repeat(dump.tensor("lives"), 2, axis=0)
    columns = str(dump.manifest.scalars["lives_columns"]).split(",")
    of_pages[::2, columns.index("free_step")], of_pages[::2, columns.index("free_site")] = 5, 1
    return changed(folder, dump, lives=of_pages)


def with_a_whole_manifest(incident: Incident) -> Incident:
    """Add a manifest of the same process, in which every guard is in force."""
    (first,) = incident.guards
    rows = [row | {"attached": True, "self_test": "fired"} for row in first.fields["patches"]]
    return replace(incident, guards=(first, replace(first, source="2.json", fields=first.fields | {"patches": rows})))


def freed_peer(folder: Path, dump: Dump, fault: str = "free_and_held") -> Dump:
    """List the full page of the lost SWA page as free and held, or with another fault."""
    if dump.manifest.verdict != "null_page_live":
        return dump
    return with_another_suspect("full", fault)(folder, dump)


def seen_by_an_audit(folder: Path, dump: Dump) -> Dump:
    """Return an audit that saw pages on the free list twice, of which the ledger saw no free."""
    audit = corpus_dump("double-bookkeeping", "pool_leak")
    nobody = with_suspects(free_step=-1)(folder, audit)
    return altered(nobody, verdict="double_free", dump_id=dump.manifest.dump_id)


def held_by_an_audit(folder: Path, dump: Dump) -> Dump:
    """Return an audit that saw a page on the free list twice, freed by somebody, and held as well."""
    audit = corpus_dump("double-bookkeeping", "pool_leak")
    words = str(audit.manifest.scalars["faults"]).split(",")
    table = np.repeat(audit.tensor("suspects")[:1], 2, axis=0)
    table[:, COLUMNS.index("fault")] = words.index("free_twice"), words.index("free_and_held")
    table[:, COLUMNS.index("free_step")] = 1
    pool = str(audit.manifest.scalars["pools"]).split(",")[table[0, COLUMNS.index("pool")]]
    bad = audit.manifest.offences[:1]
    made = altered(audit, verdict="double_free", dump_id=dump.manifest.dump_id, pool_kind=pool, offences=bad)
    return changed(folder, made, suspects=table)


def exclusions() -> Iterator[tuple[Rule, Exclusion]]:
    yield from ((rule, one) for rule in RULES for one in rule.ruled_out_if)


def begins(known: Sequence[tuple[str, str]] | set[tuple[str, str]], rule: Rule, one: Exclusion) -> bool:
    return any(rule.id == name and start and one.sentence.startswith(start) for name, start in known)


def test_each_that_a_dump_can_decide_is_made_true_here():
    default = Exclusion("").holds
    decided = [(rule, one) for rule, one in exclusions() if one.holds is not default]
    left = [
        (rule.id, one.sentence)
        for rule, one in decided
        if not (begins(list(TRUE), rule, one) or begins(ELSEWHERE, rule, one) or begins(UNLESS_PROVEN, rule, one))
    ]
    assert left == []


@pytest.mark.parametrize("which", TRUE, ids=": ".join)
def test_a_rule_is_silent_where_what_rules_it_out_holds(which, tmp_path):
    rule, start = BY_ID[which[0]], which[1]
    incident, change = spoken_of(rule.id), TRUE[which]
    assert rule.speak(incident) is not None
    try:
        made = change(incident)  # type: ignore[call-arg]
    except TypeError:
        made = of(*(change(tmp_path, dump) for dump in incident.dumps))  # type: ignore[call-arg]
    assert rule.speak(made) is None
    others = tuple(one for one in rule.ruled_out_if if not one.sentence.startswith(start))
    assert replace(rule, ruled_out_if=others).speak(made) is not None, "another sentence rules it out, or its premises"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@pytest.mark.parametrize("answer", [True, False, None])
def test_no_rule_is_certain_while_one_holds_or_is_not_decided(rule, answer):
    before = rule.speak(spoken_of(rule.id))
    more = replace(rule, ruled_out_if=(*rule.ruled_out_if, Exclusion("asked", lambda _: answer)))
    after = more.speak(spoken_of(rule.id))
    assert before is not None
    if answer is True:
        assert after is None
    elif answer is False:
        assert after == before
    else:
        assert after is not None
        assert after.confidence is not Confidence.CERTAIN
        assert after.ruled_out_if[-1] == "asked"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_what_a_rule_names_is_judged_by_its_record_alone(rule):
    """A sentence that `find` put into its finding would be asked by nobody."""
    found = rule.find(spoken_of(rule.id))
    assert isinstance(found, Finding)
    assert found.ruled_out_if == ()
