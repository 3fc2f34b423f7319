"""Rules about what the corpus does not inject, and what is made of findings: dropped, held against a fix, ranked."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from diagnose_examples import (
    CORPUS,
    OTHERS,
    altered,
    changed,
    corpus_dump,
    evidence_text,
    guards_only,
    of,
    offence,
    page_table,
    rewritten,
    start_up,
)
from gemma4_dumps.schema import VERDICTS, Layer, Provenance
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude, without_consequences
from gemma4_triage.diagnose.evidence import plain_value
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Incident, Ledger
from gemma4_triage.finding import Confidence
from golden_files import compare
from known_causes import CAUSES

FALLBACKS = {rule.id for rule in RULES if rule.fallback}


@pytest.mark.parametrize("rule", OTHERS)
def test_the_first_finding_is_the_cause(rule):
    assert conclude(OTHERS[rule])[0].rule == rule


def test_what_each_cause_is_proved_by():
    """Fields and values are held, in their order: a piece that is gone, or of another place, is seen here."""
    compare("evidence_of_other_causes.txt", evidence_text((name, conclude(OTHERS[name])) for name in sorted(OTHERS)))


@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.fallback], ids=lambda rule: rule.id)
def test_a_rule_is_silent_about_all_other_causes(rule):
    spoke = {name for name, incident in OTHERS.items() if rule.speak(incident) is not None}
    # A consequence may speak beside its cause, which is then told alone.
    causes = {cause.id for cause in RULES if rule.id in cause.explains}
    assert spoke - causes == {rule.id} & set(OTHERS)


def test_every_rule_has_an_incident_that_it_fires_on():
    on_the_corpus = {path.name for path in CORPUS.iterdir() if not path.name.startswith("clean-")}
    assert {rule.id for rule in RULES} == set(OTHERS) | {CAUSES[fault] for fault in on_the_corpus}


@pytest.mark.parametrize("rule", sorted(FALLBACKS))
def test_a_fallback_claims_no_certainty(rule):
    assert conclude(OTHERS[rule])[0].confidence is not Confidence.CERTAIN


def test_the_fallback_says_what_is_known_of_a_verdict_from_a_newer_release():
    (finding,) = conclude(OTHERS["unknown-verdict"])
    assert finding.confidence is Confidence.POSSIBLE
    assert "'invented later', which this release does not know" in finding.cause
    assert finding.evidence[1].value == "invented_later"


class TestConsequences:
    def stale(self):
        return corpus_dump("stale-mapping", "stale_mapping")

    def double_free(self, after_s):
        created = self.stale().manifest.created_utc + timedelta(seconds=after_s)
        dump = corpus_dump("free-of-page-zero", "free_out_of_range")
        return altered(dump, rule="swa-double-free", verdict="double_free", created_utc=created, dump_id=f"{after_s}")

    def test_what_a_cause_explains_becomes_its_evidence(self):
        (finding,) = conclude(of(altered(self.stale()), self.double_free(5)))
        assert finding.rule == "mapping-outlives-page"
        assert (finding.evidence[-1].source, finding.evidence[-1].value) == ("5", "double_free")

    def of_a_page(self, page, request=None):
        bad = offence("slots", page * 16).model_copy(update={"request_slot": request})
        return altered(self.double_free(5), offences=(bad,))

    @pytest.mark.parametrize(
        ("page", "request_slot", "meaning"),
        [(4, None, "a consequence"), (50, 1, "a consequence"), (0, None, "it may follow from this")],
        ids=["its page", "its request", "neither is named"],
    )
    def test_a_consequence_is_of_the_same_page_or_request_or_may_be(self, page, request_slot, meaning):
        cause = altered(self.stale(), offences=(offence("slots", 64, column=1), offence("slots", 64)))
        (finding,) = conclude(of(cause, self.of_a_page(page, request_slot)))
        assert (finding.evidence[-1].source, finding.evidence[-1].meaning) == ("5", meaning)

    @pytest.mark.parametrize("request_slot", [None, 7])
    def test_what_is_of_another_page_and_request_is_a_cause_of_its_own(self, request_slot):
        cause = altered(self.stale(), offences=(offence("slots", 64, column=1), offence("slots", 64)))
        found = conclude(of(cause, self.of_a_page(50, request_slot)))
        assert [finding.rule for finding in found] == ["mapping-outlives-page", "page-freed-twice"]
        assert "5" not in {piece.source for piece in found[0].evidence}

    def test_a_cause_is_what_was_looked_at_first_and_not_what_was_written_first(self):
        cause, later = altered(self.stale(), step=3), self.of_a_page(4)
        early = altered(later, step=4, created_utc=self.stale().manifest.created_utc - timedelta(seconds=9))
        assert [finding.rule for finding in conclude(of(early, cause))] == ["mapping-outlives-page"]
        sooner = altered(later, step=2)
        assert [finding.rule for finding in conclude(of(cause, sooner))] == [
            "page-freed-twice",
            "mapping-outlives-page",
        ]

    def test_of_one_step_what_a_step_comes_to_first_is_the_first_cause(self):
        allocator = altered(self.double_free(5), step=3)
        table = altered(corpus_dump("page-past-the-end", "out_of_range"), step=3)
        found = conclude(of(table, allocator))
        assert [finding.rule for finding in found] == ["page-freed-twice", "page-past-pool-end"]
        table = altered(table, step=2)
        assert conclude(of(table, allocator))[0].rule == "page-past-pool-end"

    def test_the_first_dump_of_a_kind_is_the_one_that_was_looked_at_first(self):
        first = OTHERS["foreign-ids"].dumps[0]
        late = altered(first, dump_id="written late", step=1, created_utc=first.manifest.created_utc + timedelta(1))
        (finding,) = conclude(of(altered(first, step=2), late))
        assert finding.evidence[0].source == "written late"

    def test_a_server_dies_of_what_was_looked_at_first_and_not_of_what_is_most_certain(self):
        bad = offence("swa_page_table", 65).model_copy(update={"request_slot": 9})
        table = altered(corpus_dump("page-past-the-end", "out_of_range"), step=2, offences=(bad,))
        died = altered(OTHERS["scheduler-exception"].dumps[0], step=3, dump_id="died", offences=())
        found = conclude(of(altered(self.stale(), step=3), table, died))
        assert [finding.confidence for finding in found] == [Confidence.LIKELY, Confidence.CERTAIN]
        assert [(finding.rule, finding.evidence[-1].source == "died") for finding in found] == [
            ("page-past-pool-end", True),
            ("mapping-outlives-page", False),
        ]

    @pytest.mark.parametrize(
        ("step", "request_slot", "confidence"),
        [
            (3, 1, Confidence.LIKELY),
            (2, 1, Confidence.LIKELY),
            (4, 1, Confidence.CERTAIN),
            (3, 9, Confidence.CERTAIN),
        ],
        ids=["of the same request", "before it", "after it", "of another request"],
    )
    def test_no_cause_is_certain_beside_another_that_may_be_the_first(self, step, request_slot, confidence):
        bad = offence("swa_page_table", 65).model_copy(update={"request_slot": request_slot})
        table = altered(corpus_dump("page-past-the-end", "out_of_range"), step=step, offences=(bad,))
        found = {finding.rule: finding for finding in conclude(of(altered(self.stale(), step=3), table))}
        assert set(found) == {"mapping-outlives-page", "page-past-pool-end"}
        cause = found["mapping-outlives-page"]
        assert cause.confidence is confidence
        told = [sentence for sentence in cause.ruled_out_if if "which came first" in sentence]
        assert len(told) == (confidence is Confidence.LIKELY)
        assert all("page-past-pool-end" in sentence for sentence in told)

    def test_what_came_before_it_is_not(self):
        found = conclude(of(self.double_free(-5), self.stale()))
        assert {finding.rule for finding in found} == {"mapping-outlives-page", "page-freed-twice"}

    def test_what_is_more_certain_is_not(self):
        # Only likely, once the audit alone has seen the mapping.
        audit = altered(corpus_dump("stale-mapping", "stale_mapping"), rule="leak-audit", offences=(), tensors={})
        incident = of(audit, self.double_free(5))
        cause, later = (
            rule.speak(incident) for rule in RULES if rule.id in ("mapping-outlives-page", "page-freed-twice")
        )
        assert cause is not None
        assert later is not None
        alone = list(without_consequences([cause, later], incident))
        assert [finding.rule for finding in alone] == ["mapping-outlives-page"]
        sure = later.model_copy(update={"confidence": Confidence.CERTAIN})
        assert list(without_consequences([cause, sure], incident)) == [cause, sure]

    def test_the_row_that_a_longer_row_runs_into_is_no_cause_of_its_own(self):
        cause = altered(corpus_dump("row-too-short", "row_overflow"))
        (behind,) = OTHERS["request-state-differs"].dumps[:1]
        later = cause.manifest.created_utc + timedelta(seconds=1)
        found = conclude(of(cause, altered(behind, created_utc=later)))
        assert [finding.rule for finding in found] == ["row-too-short"]

    def test_a_repetition_is_no_finding_of_its_own(self):
        first = OTHERS["foreign-ids"].dumps[0]
        again = altered(first, dump_id="again", step=99, site="elsewhere")
        assert len(conclude(of(first, again))) == 1

    def test_what_differs_is(self):
        first = OTHERS["foreign-ids"].dumps[0]
        other = altered(first, dump_id="other", layer=Layer(id=4, type="sliding"))
        assert [found.rule for found in conclude(of(first, other))] == ["foreign-ids", "foreign-ids"]


class TestConfidence:
    def wrong_space(self, **changes):
        return altered(corpus_dump("swa-state-stale", "wrong_space"), **changes)

    def test_a_fix_that_was_attached_takes_the_certainty(self):
        dump = self.wrong_space()
        rows = [*dump.manifest.guards["patches"], {"id": "swa-state-swap", "kind": "fix", "attached": True}]
        dump = altered(dump, guards=dump.manifest.guards | {"patches": rows})
        (finding,) = conclude(of(dump))
        assert finding.confidence is Confidence.LIKELY
        assert finding.evidence[-1].field == f"guards.patches.{len(rows) - 1}.attached"
        assert conclude(of(self.wrong_space()))[0].confidence is Confidence.CERTAIN

    def test_a_backend_that_does_translate_makes_the_stale_state_less_certain(self):
        dump = self.wrong_space()
        tensors = dump.manifest.tensors | {"swa_page_table": dump.manifest.tensors["page_table"]}
        assert conclude(of(altered(dump, tensors=tensors)))[0].confidence is Confidence.LIKELY

    @pytest.mark.parametrize(
        ("missing", "rule", "confidence"),
        [
            (set(), "row-not-translated", Confidence.CERTAIN),
            ({"swa_out_cache_loc"}, "row-not-translated", Confidence.LIKELY),
            ({"page_table"}, "page-past-pool-end", Confidence.LIKELY),
        ],
    )
    def test_a_row_that_equals_the_full_tables_is_no_off_by_one(self, tmp_path, missing, rule, confidence):
        dump = corpus_dump("one-untranslated-row", "out_of_range")
        kept = {name: record for name, record in dump.manifest.tensors.items() if name not in missing}
        save_file({name: np.array(dump.tensor(name)) for name in kept}, tmp_path / "tensors.safetensors")
        (finding,) = conclude(of(rewritten(tmp_path, dump, tensors=kept)))
        assert (finding.rule, finding.confidence) == (rule, confidence)

    def test_a_contained_row_is_compared_as_it_was(self, tmp_path):
        dump = corpus_dump("one-untranslated-row", "out_of_range")
        tensors = {name: np.array(dump.tensor(name)) for name in dump.manifest.tensors}
        tensors["swa_page_table"][5, 7] = 0
        save_file(tensors, tmp_path / "tensors.safetensors")
        (finding,) = conclude(of(rewritten(tmp_path, dump, action="contained")))
        assert (finding.rule, finding.confidence) == ("row-not-translated", Confidence.LIKELY)

    def test_pages_lost_without_the_exchange_in_the_events_are_possible_only(self, tmp_path):
        dump = corpus_dump("deferred-free-after-replacement", "pool_leak")
        (tmp_path / "tensors.safetensors").write_bytes((dump.path / "tensors.safetensors").read_bytes())
        (tmp_path / "events.jsonl").write_text("")
        (finding,) = conclude(of(rewritten(tmp_path, dump)))
        assert (finding.rule, finding.confidence) == ("swa-page-replaced-before-free", Confidence.POSSIBLE)
        assert finding.structure is None

    def test_a_call_that_translates_late_did_not_lose_what_was_replaced(self, tmp_path):
        audit, dump = (
            corpus_dump(case, "pool_leak") for case in ("deferred-free-after-replacement", "alloc-on-one-pool")
        )
        page = int(audit.tensor("suspects")[0, 0])
        lost, free = np.array([[page], [page + 1]]), np.arange(3) + page + 2
        at_the_end = altered(
            changed(tmp_path, dump, pages_lost=lost, free_pages_swa=free, free_pages_full=free),
            site="SWATokenToKVPoolAllocator.free_group_end",
            pool_kind="swa",
            offences=tuple(offence("pages_lost", page + row, row=row) for row in range(2)),
            dump_id="at the end",
        )
        (finding,) = conclude(of(at_the_end, altered(audit)))
        assert (finding.rule, finding.confidence) == ("swa-page-replaced-before-free", Confidence.CERTAIN)
        assert "at the end" in {piece.source for piece in finding.evidence}
        (alone,) = conclude(of(at_the_end))
        assert (alone.rule, alone.confidence) == ("pages-lost-between-calls", Confidence.LIKELY)

    def test_an_index_far_beyond_the_end_is_no_off_by_one(self):
        beyond = page_table("out_of_range", offences=(offence("swa_page_table", 65), offence("swa_page_table", 900)))
        assert conclude(beyond)[0].rule == "index-outside-buffer"

    def test_the_window_is_no_cause_of_a_crash(self):
        window = corpus_dump("window-one-too-wide", "window_width")
        assert conclude(of(altered(window)))[0].is_note
        (cause, aside) = conclude(of(self.wrong_space(), altered(window)))
        assert (cause.rule, aside.rule) == ("draft-swa-state-stale", "window-one-too-wide")
        assert (cause.is_note, aside.is_note) == (False, True)

    def test_a_window_that_its_fix_left_is_no_note(self):
        window = corpus_dump("window-one-too-wide", "window_width")
        fixed = self.wrong_space().manifest.guards
        assert any(row["id"] == "swa-window-width" for row in fixed["patches"])
        (finding,) = conclude(of(altered(window, guards=fixed)))
        assert (finding.is_note, finding.confidence) == (False, Confidence.LIKELY)

    def test_a_window_that_is_off_by_more_is_not_the_releases(self):
        other = start_up("window_width", "target window_left, layers 0: found 40, expected 31")
        assert conclude(other)[0].rule == "parts-disagree"


class TestGuards:
    def advice(self, verdict, summary, severity="advice"):
        return guards_only(id="geometry", findings=[{"severity": severity, "verdict": verdict, "summary": summary}])

    def test_advice_alone_names_its_cause(self):
        (finding,) = conclude(self.advice("swa_state", "draft swa_state: found none on B, expected SWAKVPool@1"))
        assert (finding.rule, finding.confidence) == ("draft-swa-state-stale", Confidence.LIKELY)
        (piece,) = finding.evidence
        assert (piece.source, piece.field) == ("1.json", "patches.0.findings.0.summary")

    @pytest.mark.parametrize(
        ("versions", "confidence"),
        [({"sglang": "0.5.13.post1"}, Confidence.CERTAIN), ({}, Confidence.LIKELY), ({"sglang": "0.5.23"}, None)],
    )
    def test_a_window_that_is_one_too_wide_is_the_releases_own_where_that_is_known(self, versions, confidence):
        incident = self.advice("window_width", "target window_left, layers 0: found 32, expected 31")
        (guards,) = incident.guards
        told = replace(guards, fields=guards.fields | {"versions": versions})
        (finding,) = conclude(replace(incident, guards=(told,)))
        rule = "parts-disagree" if confidence is None else "window-one-too-wide"
        assert (finding.rule, finding.confidence) == (rule, confidence or Confidence.CERTAIN)
        assert finding.is_note is (confidence is not None)

    def test_a_note_is_no_finding(self):
        assert conclude(self.advice("pool_too_small", "swa_slots: found 512, expected more than 650", "note")) == ()

    def test_what_was_not_in_force(self):
        (finding,) = conclude(guards_only(attached=False, reason="SGLang 0.5.99 has no such function"))
        assert [piece.value for piece in finding.evidence] == ["page-table", "SGLang 0.5.99 has no such function"]
        assert finding.confidence is Confidence.CERTAIN
        assert conclude(guards_only(self_test="silent"))[0].rule == "guards-incomplete"
        unverified = Incident(guards=(Guards("1.json", "", {"verified": False, "patches": []}),))
        assert conclude(unverified)[0].evidence[0].field == "verified"
        blind = Incident(ledgers=(Ledger("vm_p1.json", {"cannot": "an unknown prefix cache"}),))
        assert conclude(blind)[0].evidence[0].value == "an unknown prefix cache"

    def test_beside_a_dump_they_are_not_the_first_cause(self):
        dump = altered(corpus_dump("page-past-the-end", "out_of_range"))
        rows = [{"id": "swa-allocator", "kind": "probe", "attached": False}]
        found = conclude(of(altered(dump, guards=dump.manifest.guards | {"patches": rows})))
        assert [finding.rule for finding in found] == ["page-past-pool-end", "guards-incomplete"]

    def test_a_fault_that_no_dump_shows_stays_a_finding(self):
        dump = altered(corpus_dump("page-past-the-end", "out_of_range"))
        chosen = dump.manifest.guards["settings"] | {"faults": ["page-past-the-end", "stale-mapping"]}
        found = conclude(of(altered(dump, guards=dump.manifest.guards | {"settings": chosen})))
        assert [finding.rule for finding in found] == ["page-past-pool-end", "injected-fault"]
        assert [piece.value for piece in found[1].evidence] == ["stale-mapping"]

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["patches", "settings", "faults", "id", "attached", "findings", "summary", "pid"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=20,
        )
    )
    def test_a_manifest_from_anywhere_is_survived(self, anything):
        fields = anything if isinstance(anything, dict) else {"patches": anything}
        for finding in conclude(Incident(guards=(Guards("x.json", "", fields),))):
            assert all(plain_value(fields, piece.field) == piece.value for piece in finding.evidence)


SPACES = st.sampled_from(["full", "swa", "draft", "unknown"])
NUMBERS = st.integers(-3, 70)


@settings(deadline=None)
@given(
    rule=st.sampled_from(["page-table-bounds", "leak-audit", "geometry", "swa-free-range", "swa-lost-pages", "new"]),
    verdict=st.sampled_from([*VERDICTS, "new"]),
    role=st.sampled_from([None, "target", "draft"]),
    spaces=st.tuples(SPACES, SPACES),
    places=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3),
    page_size=st.sampled_from([None, 0, 1, 16]),
    case=st.sampled_from(
        [
            ("one-untranslated-row", "out_of_range"),
            ("double-bookkeeping", "pool_leak"),
            ("stale-mapping", "stale_mapping"),
        ]
    ),
)
def test_any_manifest_has_a_finding_whose_evidence_stands_in_it(rule, verdict, role, spaces, places, page_size, case):
    dump = altered(
        corpus_dump(*case),
        rule=rule,
        verdict=verdict,
        role=role,
        page_size=page_size,
        provenance=Provenance(table_space=spaces[0], buffer_space=spaces[1]),
        offences=tuple(offence("swa_page_table", value, row=row, column=column) for row, column, value in places),
    )
    (incident,) = group([dump])
    findings = conclude(incident)
    assert findings
    for piece in (piece for finding in findings for piece in finding.evidence):
        if "[" not in piece.field and not piece.field.startswith("events."):
            assert plain_value(dump.manifest, piece.field) == piece.value
