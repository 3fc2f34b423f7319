"""events.jsonl is believed where the manifest vouches for it and each field is of the type that events have."""

import json
import shutil

import pytest

from diagnose_examples import rewritten
from dump_examples import put_manifest
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import read_dump
from gemma4_dumps.verify import verify_dump
from gemma4_triage.finding import Confidence
from mutation_dumps import dumps_of, named_of

NAME = "host-lengths-in-another-order"


@pytest.fixture
def dump(tmp_path):
    (kept,) = dumps_of(NAME)
    folder = tmp_path / kept.path.name
    shutil.copytree(kept.path, folder)
    return folder


def with_last_event(folder, **fields):
    lines = (folder / "events.jsonl").read_text().splitlines()
    lines[-1] = json.dumps(json.loads(lines[-1]) | fields)
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    "field",
    [
        *({"last_loc": 3}, {"seq_lens": [[1]]}, {"seq_lens": [True]}, {"step": "4"}, {"step": 1 << 70}, {"full": [3]}),
        *({"first_pages": "12"}, {"first_pages": 12}, {"pages": None}, {"call": None}, {"returned": 1}, {"site": 7}),
    ],
    ids=json.dumps,
)
def test_a_field_of_another_type_is_damage_and_no_defect_of_a_rule(dump, field):
    kept = read_dump(dump)
    with_last_event(dump, **field)
    (dump / "manifest.json").unlink()
    again = rewritten(dump, kept)
    with pytest.raises(DumpUnreadable, match=rf"line \d+ has a {next(iter(field))} of another type"):
        list(again.events())
    assert not any(one.rule == "rule-failed" for one in named_of(again))


def test_fields_that_nobody_knows_are_kept(dump):
    kept = read_dump(dump)
    with_last_event(dump, newer={"a": 1})
    (dump / "manifest.json").unlink()
    assert list(rewritten(dump, kept).events())[-1]["newer"] == {"a": 1}


def test_a_file_that_the_manifest_does_not_list_is_not_vouched_for(dump):
    assert verify_dump(dump).ok
    manifest = json.loads((dump / "manifest.json").read_text())
    del manifest["files"]["events.jsonl"]
    (dump / "manifest.json").write_text(json.dumps(manifest))
    report = verify_dump(dump)
    assert [(one.subject, one.detail) for one in report.checks if not one.ok] == [
        ("events.jsonl", "the manifest does not list it")
    ]
    assert all(one.confidence is not Confidence.CERTAIN for one in named_of(read_dump(dump)))


def test_a_line_that_cannot_be_read_is_said_with_what_else_is_damaged(dump):
    kept = read_dump(dump)
    with_last_event(dump, step="4")
    (dump / "manifest.json").unlink()
    changed = rewritten(dump, kept)
    put_manifest(dump, changed.manifest.model_dump(mode="json"))
    assert [one.subject for one in verify_dump(dump).checks if not one.ok] == ["events.jsonl"]


def test_a_page_of_no_size_is_damage_and_ends_nothing(tmp_path):
    dump = next(one for one in dumps_of("kernel-lengths-swapped") if one.manifest.rule == "page-table-bounds")
    folder = tmp_path / dump.path.name
    shutil.copytree(dump.path, folder)
    manifest = json.loads((folder / "manifest.json").read_text()) | {"page_size": -1}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert not verify_dump(folder).ok
