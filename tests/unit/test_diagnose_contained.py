"""The dumps of a server that serves on: the cause shows late, in the audit, and its consequences show beside it.

The dumps are of a real run; `tests/tools/make_contained_dumps.py` made them.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from diagnose_examples import altered, of, rewritten, stands_there
from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.verify import verify_dump
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.material import read_store
from gemma4_triage.finding import Confidence

ROOT = Path(__file__).parents[1] / "data" / "contained_dumps"


def incident_of(case):
    (found,) = group(read_store(DumpStore(ROOT / case), None).dumps)
    return found


@pytest.fixture
def incident():
    return incident_of("one-after-the-other")


@pytest.fixture
def audit(incident):
    dump = incident.first(rule="leak-audit", verdict="free_out_of_range")
    assert dump is not None
    return dump


def listing(audit: Dump, folder: Path, *rows: dict[str, int]) -> Dump:
    """Return the same audit with these suspects, each like the one that it has but for the columns named."""
    columns = str(audit.manifest.scalars["columns"]).split(",")
    table = np.repeat(np.array(audit.tensor(TABLE)), len(rows), axis=0)
    for number, row in enumerate(rows):
        for name, value in row.items():
            table[number, columns.index(name)] = value
    save_file({TABLE: table}, folder / "tensors.safetensors")
    record = audit.manifest.tensors[TABLE].model_copy(update={"shape": table.shape})
    return Dump(folder, altered(audit, tensors={TABLE: record}).manifest)


def test_the_fixtures_are_whole_and_name_no_path_of_a_home():
    for manifest in ROOT.rglob("manifest.json"):
        assert verify_dump(manifest.parent).ok
        assert not {"/root", "/home", "/tmp"} & {f"/{part}" for part in manifest.read_text().split("/")}


@pytest.mark.parametrize(
    ("case", "consequences"),
    [
        ("one-after-the-other", {"null_page_live", "double_free"}),
        ("at-once", {"null_page_live", "double_free", "pool_leak"}),
    ],
)
def test_the_freed_page_comes_before_what_it_led_to(case, consequences):
    first, *asides = conclude(incident_of(case))
    assert (first.rule, first.confidence) == ("unset-slot-freed", Confidence.LIKELY)
    assert [finding.rule for finding in asides] == ["window-one-too-wide"]
    assert {piece.value for piece in first.evidence if piece.meaning == "it may follow from this"} == consequences
    assert "(injected on request: free-of-page-zero)" in first.cause
    assert all(stands_there(piece, ROOT / case) for piece in first.evidence)


def test_an_swa_page_without_a_peer_has_no_exchange_in_the_events():
    # Any free would fit a full page that nobody knows.
    leak = next(incident_of("at-once").of(verdict="pool_leak"))
    (finding,) = conclude(of(altered(leak)))
    assert (finding.rule, finding.confidence) == ("swa-page-replaced-before-free", Confidence.POSSIBLE)


def test_the_audit_alone_is_enough(audit):
    (finding,) = conclude(of(altered(audit)))
    assert (finding.rule, finding.confidence) == ("unset-slot-freed", Confidence.LIKELY)


def test_a_list_that_has_page_0_and_no_call_that_freed_it_may_have_been_overwritten(audit, tmp_path):
    for path in audit.path.iterdir():
        if path.name != "events.jsonl":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "events.jsonl").write_text("")
    (finding,) = conclude(of(rewritten(tmp_path, audit)))
    assert (finding.rule, finding.confidence) == ("unset-slot-freed", Confidence.POSSIBLE)


def test_who_freed_it_is_read_from_the_events_of_the_audit(incident):
    first = conclude(incident)[0]
    site, step, *_ = (piece for piece in first.evidence if piece.field.startswith("events."))
    assert (site.value, step.value) == ("release_kv_cache", 11)


def test_what_came_before_the_audit_saw_it_stays_beside_it(incident):
    # It may be the cause: a row whose live column holds page 0 frees page 0 when its request ends.
    dumps = [
        altered(dump, step=13) if dump.manifest.verdict == "free_out_of_range" else dump for dump in incident.dumps
    ]
    rules = [finding.rule for finding in conclude(replace(incident, dumps=tuple(dumps)))]
    assert rules[:2] == ["null-page-in-live-column", "unset-slot-freed"]


def test_a_dump_that_is_written_late_is_of_the_step_at_which_it_looked(incident):
    # The audit looked at step 11; when its dump was written says nothing.
    later = max(dump.manifest.created_utc for dump in incident.dumps) + timedelta(seconds=60)
    dumps = [
        altered(dump, created_utc=later) if dump.manifest.verdict == "free_out_of_range" else dump
        for dump in incident.dumps
    ]
    found = conclude(replace(incident, dumps=tuple(dumps)))
    assert [finding.rule for finding in found] == ["unset-slot-freed", "window-one-too-wide"]


def test_beside_pages_that_the_pool_does_not_have_it_is_ruled_out(audit, tmp_path):
    (finding,) = conclude(of(listing(audit, tmp_path, {"page": -3}, {"page": 0}, {"page": 900})))
    assert (finding.rule, finding.confidence) == ("unknown-verdict", Confidence.POSSIBLE)


@pytest.mark.parametrize(
    ("row", "rule"), [({"page": 900}, "unknown-verdict"), ({"page": 0, "pool": 2}, "request-slots-listed-wrong")]
)
def test_another_page_or_a_request_slot_is_no_page_zero(audit, tmp_path, row, rule):
    assert conclude(of(listing(audit, tmp_path, row)))[0].rule == rule


def test_an_audit_without_its_table_names_nothing(audit):
    assert conclude(of(altered(audit, tensors={})))[0].rule == "unknown-verdict"
