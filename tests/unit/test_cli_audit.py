"""`gemma4-triage audit` offline: the committed sample of a real run, and dumps that are none or no good."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dump_examples import flip, seed_bug_draft
from gemma4_dumps.draft import TensorPayload
from gemma4_dumps.store import DumpStore

(SAMPLE,) = (Path(__file__).parents[2] / "dumps" / "samples").glob("*_leak-audit_*")


@pytest.fixture
def store(tmp_path):
    return DumpStore(tmp_path / "root")


def test_pages_owner_site_and_the_equation(cli):
    code, out, _ = cli("audit", SAMPLE)
    assert code == 1
    assert out.startswith("POOL LEAK  ")
    assert "48 uncached = 2544 != 2560: 16 missing" in out
    row = next(line for line in out.splitlines() if line.startswith("14 ") and " swa " in line)
    assert "slot 5, generation 1" in row
    assert "alloc_for_extend, step 0" in row


def test_a_damaged_dump_is_said_to_be_one_first(cli, tmp_path):
    copy = shutil.copytree(SAMPLE, tmp_path / SAMPLE.name)
    flip(copy / "tensors.safetensors", at=-8)
    code, out, _ = cli("audit", copy)
    assert (code, out.splitlines()[1][:9]) == (4, "POOL LEAK")
    assert out.startswith(f"damaged: {SAMPLE.name}: tensors.safetensors: SHA-256 ")
    code, out, err = cli("audit", copy, "--json")
    assert (code, [one["dump_id"] for one in json.loads(out)["damaged"]]) == (4, [SAMPLE.name])
    assert err.startswith("damaged: ")


def test_json_is_one_document_with_numbers(cli):
    code, out, _ = cli("audit", SAMPLE, "--json")
    document = json.loads(out)
    assert (code, document["schema_version"], document["kind"], document["leak"]) == (1, "1.0", "audit", True)
    (found,) = document["audits"]
    full = found["equations"][0]
    assert (full["pool"], full["accounted"], full["total"], full["holds"]) == ("full", 2544, 2560, False)
    assert found["suspect_count"] == len(found["suspects"]) == 2
    assert found["suspects"][0] == {
        "page": 14,
        "pool": "full",
        "fault": "nowhere",
        "places": 0,
        "owner": {"request_slot": 5, "generation": 1},
        "alloc_site": "alloc_for_extend",
        "alloc_step": 0,
        "free_site": "unknown",
        "free_step": None,
        "peer": 14,
        "last_event": "owned",
    }


def test_what_an_owner_lost_is_summed_up(cli):
    _, out, _ = cli("audit", SAMPLE)
    assert "  full     slot 5, generation 1 lost 1: 1 from alloc_for_extend (at step 0)" in out.splitlines()
    _, out, _ = cli("audit", SAMPLE, "--json")
    (found,) = json.loads(out)["audits"]
    assert found["lost"][0] == {
        "pool": "full",
        "owner": {"request_slot": 5, "generation": 1},
        "pages": 1,
        "handed_out": [{"site": "alloc_for_extend", "step": 0, "pages": 1}],
    }
    assert [one["pool"] for one in found["lost"]] == ["full", "swa"]


def test_owners_are_limited_and_counted(cli):
    _, out, _ = cli("audit", SAMPLE, "--rows", "1")
    assert "  1 more owner; --json has them" in out.splitlines()


def test_rows_are_limited_and_counted(cli):
    _, out, _ = cli("audit", SAMPLE, "--rows", "1")
    assert "1 more; --json has them" in out


def test_a_dump_of_another_rule_is_no_audit(cli, store):
    path = store.write(seed_bug_draft()).path
    code, out, err = cli("audit", path)
    assert (code, out) == (5, "")
    assert "not an audit dump: rule page-table-bounds" in err
    code, _, err = cli("audit", path, SAMPLE)
    assert code == 1
    assert "not an audit dump: rule page-table-bounds" in err


def test_json_of_nothing_checked_is_still_a_document(cli, store):
    path = store.write(seed_bug_draft()).path
    code, out, _ = cli("audit", path, "--json")
    assert (code, json.loads(out)["exit_code"]) == (5, 5)


@pytest.mark.parametrize(
    ("scalars", "table"),
    [
        ({}, np.zeros((1, 3), np.int64)),
        ({"columns": "page,pool", "pools": "a", "sites": "a", "faults": "a", "last_events": "a"}, np.zeros((1, 3))),
    ],
    ids=["no words", "another width"],
)
def test_a_damaged_audit_is_unreadable(cli, store, scalars, table):
    draft = dataclasses.replace(
        seed_bug_draft(), rule="leak-audit", scalars=scalars, tensors={"suspects": TensorPayload.from_array(table)}
    )
    assert cli("audit", store.write(draft).path)[0] == 4


def test_a_code_without_a_word_is_unreadable(cli, store):
    words = {"pools": "full", "sites": "unknown", "faults": "none", "last_events": "none"}
    columns = "page,pool,fault,places,owner_slot,owner_generation,alloc_site,alloc_step,free_site,free_step,peer"
    table = np.full((1, 12), 7, np.int64)
    draft = dataclasses.replace(
        seed_bug_draft(),
        rule="leak-audit",
        scalars=words | {"columns": f"{columns},last_event"},
        tensors={"suspects": TensorPayload.from_array(table)},
    )
    assert cli("audit", store.write(draft).path)[0] == 4


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--live", "x"),
        ("x", "--fault", "y"),
        ("x", "--requests", "3"),
        ("no-such-dump",),
        ("--live", "--fault", "z"),
    ],
    ids=["nothing", "both", "fault without live", "requests without live", "unknown dump", "unknown fault"],
)
def test_usage_mistakes(cli, words, tmp_path):
    code, out, err = cli("audit", *words, "--dir", tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
