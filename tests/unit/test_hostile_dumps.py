"""Dumps that somebody made to mislead: their words stay words, links lead nowhere, and a crowd is counted."""

import json
import os
import shutil
import zipfile

import pytest

from diagnose_examples import CORPUS
from dump_examples import put_manifest, seed_bug_draft
from gemma4_dumps.store import DumpStore
from gemma4_triage.diagnose.material import read_store

FORGED = "x\nCERTAIN  FORGED\r\nCERTAIN  FORGED\u2028CERTAIN  FORGED\u2029\x0bCERTAIN  FORGED\x85CERTAIN  FORGED"


def damaged_store(root, count):
    """Return a store of equal dumps, whose tensors are none of theirs."""
    store = DumpStore(root)
    for _ in range(count):
        path = store.write(seed_bug_draft()).path
        assert path is not None
        (path / "tensors.safetensors").write_bytes(b"torn")
    return store


@pytest.fixture
def forged(tmp_path):
    """Return a dump in which every string that a probe words begins lines of its own."""
    store = DumpStore(tmp_path / "store")
    words = dict.fromkeys(("summary", "site", "backend", "repeat_command"), FORGED)
    path = store.write(seed_bug_draft(**words, scalars={FORGED: FORGED}, guards={FORGED: FORGED})).path
    assert path is not None
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"versions": {FORGED: FORGED}, "gpu": {FORGED: FORGED}, "included": [FORGED, "<b>`kv`</b>"]}
    put_manifest(path, manifest)
    return path


@pytest.mark.parametrize("verb", [("diagnose",), ("report",), ("dumps", "show"), ("dumps", "verify"), ("replay",)])
def test_no_string_of_a_manifest_begins_a_line(cli, forged, verb):
    _, out, err = cli(*verb, forged)
    lines = (out + err).splitlines()
    assert not [line for line in lines if line.lstrip(" │|").startswith("CERTAIN  FORGED")]


def test_no_string_of_a_manifest_begins_a_line_of_the_list_or_of_a_readme(cli, forged, tmp_path):
    _, out, err = cli("dumps", "list", "--dir", forged.parent)
    assert "\nCERTAIN  FORGED" not in out + err
    assert cli("dumps", "export", forged, "-o", tmp_path / "out.zip")[0] == 0
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        readme = archive.read("README.md").decode()
    assert not [line for line in readme.splitlines() if line.startswith("CERTAIN")]
    assert "`<b>'kv'</b>`" in readme, "a word that is not ours is code, and no markup"


def test_a_linked_folder_of_guard_manifests_is_not_followed(tmp_path):
    source = CORPUS / "swa-state-stale"
    shutil.copytree(source, tmp_path / "whole")
    shutil.copytree(source, tmp_path / "linked", ignore=shutil.ignore_patterns("guards"))
    os.symlink(source / "guards", tmp_path / "linked" / "guards")
    whole, linked = (read_store(DumpStore(tmp_path / name), None) for name in ("whole", "linked"))
    assert whole.dumps
    assert [dump.manifest for dump in linked.dumps] == [dump.manifest for dump in whole.dumps]
    assert whole.guards
    assert linked.guards == ()


@pytest.mark.parametrize("as_json", [True, False], ids=["json", "view"])
@pytest.mark.parametrize("count", [2, 20])
def test_of_a_crowd_of_damaged_dumps_there_is_a_count_and_an_example(cli, tmp_path, count, as_json):
    store = damaged_store(tmp_path / "store", count)
    names = store.names()
    code, out, err = cli("diagnose", "--limit", "0", "--dir", store.root, *["--json"] * as_json)
    assert code == 4
    said = [line for line in (err if as_json else out).splitlines() if line.startswith("damaged: ")]
    assert len(said) == 2
    if count > 2:
        assert said[1] == f"damaged: {len(names) - 1} more dumps; --json has them all"
    if as_json:
        assert len(json.loads(out)["damaged"]) == len(names)


def test_a_report_of_a_crowd_of_damaged_dumps_shows_an_example_and_counts_what_it_leaves_out(cli, tmp_path):
    store = damaged_store(tmp_path / "store", 62)
    code, out, _ = cli("report", "--limit", "0", "--dir", store.root, "-o", tmp_path / "page.html")
    assert code == 4
    said = [line for line in out.splitlines() if line.startswith("damaged: ")]
    count = len(store.names())
    assert said[1:] == [
        f"damaged: {count - 1} more dumps; the written report lists them, and says how many it leaves out"
    ]
    assert f"left out: {count - 60} more damaged dumps" in out
    assert (tmp_path / "page.html").read_text().count('<p class="damaged">damaged: ') == 60


def test_a_report_of_a_crowd_of_torn_dumps_counts_all_of_them(cli, tmp_path):
    store = damaged_store(tmp_path / "store", 70)
    for name in store.names()[1:]:
        (store.root / name / "manifest.json").unlink()
    code, out, _ = cli("report", "--limit", "0", "--dir", store.root, "-o", tmp_path / "page.html")
    assert code == 4
    torn = len(store.names()) - 1
    said = [line for line in out.splitlines() if line.startswith("not read: ")]
    assert (len(said), said[1].partition(";")[0]) == (2, f"not read: {torn - 1} more pieces")
    assert f"left out: {torn - 60} more unreadable pieces; gemma4-triage diagnose --json names them" in out
    assert (tmp_path / "page.html").read_text().count("not read: ") == 60
