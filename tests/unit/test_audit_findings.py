"""Who lost what: sums over the rows of an audit."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.audit_findings import LIVES, MAX_ROWS, SHARES, TABLE, Suspect, equations, lives, lost, suspects
from gemma4_dumps.errors import DumpUnreadable

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


WORDS = {"pools": "full,swa", "sites": "alloc_for_extend,evict", "faults": "nowhere", "last_events": "owned"}
_OF_BOTH = "owner_slot,owner_generation,alloc_site,alloc_step"
COLUMNS = {
    TABLE: ("columns", f"page,pool,fault,places,{_OF_BOTH},free_site,free_step,peer,last_event"),
    LIVES: ("lives_columns", f"pool,page,{_OF_BOTH},given_step,free_site,free_step"),
}
ROWS = {TABLE: [7, 1, 0, 0, 2, 5, 0, 3, 1, -1, 0, 0], LIVES: [1, 7, 2, 5, 0, 3, -1, 1, 9]}
READERS = {TABLE: suspects, LIVES: lives}


def audit(name, rows, scalars=(), dtype=np.int64):
    """Return a dump of an audit with one table; `scalars` replace those that name its columns and codes."""
    column_names, columns = COLUMNS[name]
    table = np.array(rows, dtype)
    return SimpleNamespace(
        manifest=SimpleNamespace(scalars=WORDS | {column_names: columns} | dict(scalars), tensors={name: None}),
        record=lambda _: SimpleNamespace(shape=table.shape, dtype=str(table.dtype)),
        tensor=lambda _: table,
    )


class TestTables:
    def test_codes_become_words(self):
        (found,) = suspects(audit(TABLE, [ROWS[TABLE]]))
        assert (found.page, found.pool, found.fault, found.owner) == (7, "swa", "nowhere", (2, 5))
        assert (found.alloc_site, found.alloc_step, found.free_step, found.peer) == ("alloc_for_extend", 3, None, None)

    def test_a_page_has_its_lives_in_their_order(self):
        later = [1, 7, 0, 0, 0, 11, 12, 1, -1]
        ((key, found),) = lives(audit(LIVES, [ROWS[LIVES], later])).items()
        assert key == ("swa", 7)
        assert [life.text() for life in found] == [
            "slot 2, generation 5: alloc_for_extend, step 3; given back by evict, step 9",
            "owner unknown: alloc_for_extend, step 11; given to the prefix cache, step 12",
        ]

    def test_a_share_is_of_the_life_in_which_it_was(self):
        tables = {
            LIVES: np.array([ROWS[LIVES], [1, 7, 2, 6, 0, 11, 12, 1, -1]]),
            SHARES: np.array([[7, 1, 3, 4, 0, 8], [7, 1, 4, 1, 0, 13], [9, 1, 4, 1, 0, 13]]),
        }
        dump = audit(LIVES, tables[LIVES], {"shares_columns": "page,pool,request_slot,request_generation,site,step"})
        dump.manifest.tensors = tables
        dump.tensor = tables.__getitem__
        dump.record = lambda name: SimpleNamespace(shape=tables[name].shape, dtype="int64")
        ((_, found),) = lives(dump).items()
        assert [[(share.owner, share.step) for share in life.shared] for life in found] == [
            [((3, 4), 8)],
            [((4, 1), 13)],
        ]
        assert (
            found[0]
            .text()
            .endswith(
                "; taken from there by slot 3, generation 4 (alloc_for_extend), step 8; given back by evict, step 9"
            )
        )

    def test_a_dump_without_lives_has_none(self):
        assert lives(audit(TABLE, [ROWS[TABLE]])) == {}

    def test_a_dump_without_suspects_is_no_audit(self):
        with pytest.raises(DumpUnreadable, match="without its table"):
            suspects(audit(LIVES, [ROWS[LIVES]], {"columns": COLUMNS[TABLE][1]}))

    @pytest.mark.parametrize("name", READERS)
    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda row: {"rows": [row[:-1]]}, "columns are named"),
            (lambda row: {"rows": row}, "columns are named"),
            (lambda row: {"rows": [row], "dtype": np.float64}, "float64"),
            (lambda row: {"rows": np.zeros((MAX_ROWS + 1, len(row)))}, f"has {MAX_ROWS + 1} rows"),
            (lambda row: {"rows": [row], "scalars": {"pools": "full"}}, "a code without a word"),
            (lambda row: {"rows": [[-1] * len(row)]}, "a code without a word"),
            (lambda row: {"rows": [row], "scalars": {"pools": None}}, "'pools'"),
        ],
        ids=["narrow", "flat", "floats", "long", "unknown", "negative", "no words"],
    )
    def test_a_table_that_does_not_fit_is_refused(self, name, change, why):
        with pytest.raises(DumpUnreadable, match=why):
            READERS[name](audit(name, **change(ROWS[name])))

    @pytest.mark.parametrize("name", READERS)
    def test_a_column_that_is_missing_is_refused(self, name):
        column_names, columns = COLUMNS[name]
        dump = audit(name, [ROWS[name]], {column_names: columns.replace("alloc_step", "another")})
        with pytest.raises(DumpUnreadable, match="lacks a column: 'alloc_step'"):
            READERS[name](dump)


def test_a_pool_whose_numbers_are_not_all_there_has_no_equation():
    sides = {"available": 3, "evictable": 2, "protected": 1, "session_held": 0, "uncached": 1}
    scalars = {f"full_{side}": number for side, number in sides.items()} | {"full_total": 9, "swa_total": 4}
    (found,) = equations(SimpleNamespace(manifest=SimpleNamespace(scalars=scalars)))
    assert (found.pool, found.sides, found.holds) == ("full", sides, False)
    assert found.text().endswith("= 7 != 9: 2 missing")
