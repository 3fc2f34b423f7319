"""The SHA-256 that a manifest names of itself: whatever is changed in it shows, and then nothing is certain."""

import json
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dump_examples import put_manifest, seed_bug_draft, written
from gemma4_dumps.errors import DumpError
from gemma4_dumps.manifest_file import MANIFEST_NAME, SEAL
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence

ROOT = Path(__file__).parents[2]
SAMPLES, DUMPS = ROOT / "dumps" / "samples", ROOT / "tests" / "data" / "mutation_dumps"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("store"), seed_bug_draft()).path


def fields_of(folder):
    return json.loads((folder / MANIFEST_NAME).read_text())


def places(document, path=()):
    """Yield the path of every value that holds no others."""
    inner = document.items() if isinstance(document, dict) else ()
    if isinstance(document, list):
        inner = enumerate(document)
    for key, value in inner:
        yield from places(value, (*path, key))
    if not isinstance(document, dict | list):
        yield path


def copied(folder, root):
    return copytree(folder, root / folder.name, dirs_exist_ok=True)


def test_a_written_dump_is_whole(folder):
    assert SEAL in fields_of(folder)
    assert verify_dump(folder).ok


def test_the_order_of_fields_and_white_space_do_not_matter(folder, tmp_path):
    copy = copied(folder, tmp_path)
    fields = dict(reversed(fields_of(folder).items()))
    (copy / MANIFEST_NAME).write_text(json.dumps(fields, indent=7, ensure_ascii=False))
    assert verify_dump(copy).ok


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_that_is_changed_shows(folder, tmp_path_factory, data):
    copy = copied(folder, tmp_path_factory.mktemp("copy"))
    fields = fields_of(folder)
    *outer, last = data.draw(st.sampled_from(list(places(fields))))
    document = fields
    for key in outer:
        document = document[key]
    kept = document[last]
    document[last] = kept + 1 if isinstance(kept, int | float) else f"{kept} "
    (copy / MANIFEST_NAME).write_text(json.dumps(fields))
    try:
        dump = read_dump(copy)
    except DumpError as error:
        # What does not fit the schema is refused before anybody asks.
        assert "schema" in str(error)
        return
    assert any(one.startswith(f"{MANIFEST_NAME}: ") for one in dump.damage)


def test_one_that_was_taken_out_shows(folder, tmp_path):
    copy = copied(folder, tmp_path)
    fields = fields_of(folder)
    del fields[SEAL]
    (copy / MANIFEST_NAME).write_text(json.dumps(fields))
    assert "it lacks the SHA-256 of itself" in str(read_dump(copy).damage)


def test_dumps_of_schema_1_0_had_none():
    old = next(SAMPLES.glob("*p24275*"))
    assert fields_of(old)["schema_version"] == "1.0"
    assert verify_dump(old).ok


@pytest.mark.parametrize(("part", "field"), [(None, "step"), ("host", "pid")])
def test_nothing_is_certain_of_a_changed_manifest(tmp_path, part, field):
    """None of these changes contradicts another number of the manifest, so that nothing else tells."""
    copy = copied(next((DUMPS / "decode-without-a-window").glob("*_geometry_*")), tmp_path)
    put_manifest(copy, fields_of(copy) | {"schema_version": "1.1"})
    assert confidence_of(copy) is Confidence.CERTAIN
    fields = fields_of(copy)
    (fields[part] if part else fields)[field] += 1
    (copy / MANIFEST_NAME).write_text(json.dumps(fields))
    assert confidence_of(copy) is not Confidence.CERTAIN


def confidence_of(folder):
    (incident,) = group((read_dump(folder),))
    return next(finding for finding in conclude(incident) if not finding.is_note).confidence
