"""Who lost what: sums over the rows of an audit."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.audit_findings import Suspect, lost

POOLS = st.sampled_from(["full", "swa", "requests"])
FAULTS = st.sampled_from(["nowhere", "locked_at_idle", "held_twice"])
OWNERS = st.sampled_from([None, (1, 1), (1, 2), (2, 1)])
SITES = st.sampled_from(["alloc_for_extend", "spec_v2_decode"])
STEPS = st.sampled_from([None, 0, 3])


def suspect(page, pool="full", fault="nowhere", owner=(1, 1), site="spec_v2_decode", step=0):
    return Suspect(page, pool, fault, 0, owner, site, step, "unknown", None, None, "owned")


@given(st.lists(st.builds(suspect, st.integers(0, 9), POOLS, FAULTS, OWNERS, SITES, STEPS), max_size=30))
def test_every_lost_page_counts_once_and_nothing_else_does(rows):
    expected = Counter(
        (row.pool, row.owner, row.alloc_site, row.alloc_step)
        for row in rows
        if row.fault == "nowhere" and row.pool != "requests"
    )
    found = lost(rows)
    assert len({(one.pool, one.owner) for one in found}) == len(found)
    counted = {(one.pool, one.owner, site, step): n for one in found for site, step, n in one.handed_out}
    assert counted == dict(expected)
    assert sum(one.pages for one in found) == expected.total()
    for one in found:
        assert sum(one.by_site().values()) == one.pages


def test_in_words():
    rows = [suspect(7, site="alloc_for_extend")] + [suspect(8 + i, step=1 + i // 2) for i in range(3)]
    assert [one.text() for one in lost(rows)] == [
        "slot 1, generation 1 lost 4: 1 from alloc_for_extend (at step 0), "
        "3 from spec_v2_decode (2 at step 1, 1 at step 2)"
    ]
    assert lost([suspect(7, owner=None, step=None)])[0].text() == (
        "an unknown owner lost 1: 1 from spec_v2_decode (at an unknown step)"
    )
