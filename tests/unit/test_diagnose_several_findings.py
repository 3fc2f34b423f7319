"""How findings of one incident stand to each other: which comes first, what is counted with it, how sure each is."""

import pytest

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.conclude import conclude, hold_against_each_other
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from mutation_dumps import dumps_of, named_of

S, C = Structure, Confidence


def test_an_earlier_step_comes_first_whatever_the_certainty():
    """The dump of a table that follows from a list is certain, and of a later step."""
    later = dumps_of("full-table-zero")[0]
    first = dumps_of("lock-left-over")[0]
    host, guards = first.manifest.host, first.manifest.guards
    of_one = [
        Dump(later.path, later.manifest.model_copy(update={"host": host, "guards": guards, "step": 99})),
        Dump(first.path, first.manifest.model_copy(update={"step": 3})),
    ]
    assert [finding.rule for finding in named_of(*of_one)][:2] == ["lock-left-over", "null-page-in-live-column"]


@pytest.mark.parametrize(("step", "confidence"), [(3, C.LIKELY), (4, C.CERTAIN)])
def test_of_one_step_no_two_structures_are_certain(step, confidence):
    one, other = dumps_of("full-table-zero")[0], dumps_of("kernel-told-of-fewer-keys")[0]
    host, guards = one.manifest.host, one.manifest.guards
    of_one = [
        Dump(one.path, one.manifest.model_copy(update={"step": 3})),
        Dump(other.path, other.manifest.model_copy(update={"host": host, "guards": guards, "step": step})),
    ]
    found = conclude(Incident(dumps=(of_one[0],))) + conclude(Incident(dumps=(of_one[1],)))
    assert [one.confidence for one in found] == [C.CERTAIN, C.CERTAIN]
    (incident,) = group(of_one)
    judged = hold_against_each_other(list(found), incident)
    assert [one.confidence for one in judged] == [confidence, confidence]


def test_a_rule_that_explains_names_rules_that_exist():
    known = {rule.id for rule in RULES}
    assert not {name for rule in RULES for name in rule.explains} - known


def test_what_rows_show_of_another_structure_is_a_finding_below_the_first():
    (first,) = dumps_of("accepted-too-many")
    (other,) = dumps_of("row-behind-a-node")
    same = {"host": first.manifest.host, "guards": first.manifest.guards, "launch_args": first.manifest.launch_args}
    later = same | {"created_utc": first.manifest.created_utc, "step": (first.manifest.step or 0) + 3}
    again = Dump(other.path, other.manifest.model_copy(update=later))
    found = named_of(first, again)
    assert [(one.rule, one.structure) for one in found] == [
        ("request-state-differs", S.REQUEST_COUNTERS),
        ("request-state-differs", S.REQUEST_ROW),
    ]
    assert found[1].confidence is not C.CERTAIN
    assert any("follows from" in sentence for sentence in found[1].ruled_out_if)


@pytest.mark.parametrize("apart", [True, False])
def test_dumps_that_say_the_same_of_other_pages_and_requests_are_counted(apart):
    dump = dumps_of("swa-table-and-the-next-batch")[0]
    bad = dump.manifest.offences[0]
    offences = tuple(
        one.model_copy(update={"value": one.value + 400 * apart, "request_slot": 900 if apart else one.request_slot})
        for one in dump.manifest.offences
    )
    later = [
        Dump(dump.path, dump.manifest.model_copy(update={"dump_id": f"{dump.manifest.dump_id}{at}", "step": 90 + at}))
        for at in range(2)
    ]
    later = [Dump(one.path, one.manifest.model_copy(update={"offences": offences})) for one in later]
    first = named_of(dump, *later)[0]
    told = [piece.meaning for piece in first.evidence if "as 2 dumps say" in piece.meaning]
    assert (bad.request_slot is not None, len(told)) == (True, int(apart))
