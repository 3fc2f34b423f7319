"""A dump whose files are not what its manifest says: it is named first, and nothing that rests on it is certain."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose_examples import CORPUS
from gemma4_dumps.reader import read_dump
from gemma4_dumps.verify import verify_dump

SEED = CORPUS / "swa-state-stale"
FIRST = "20261121T165050.307272Z_vm_r0_p18498_page-table-bounds_0002"
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"


def flip(dump: Path) -> None:
    data = bytearray((dump / TENSORS).read_bytes())
    data[-1] ^= 1
    (dump / TENSORS).write_bytes(data)


def truncate(dump: Path) -> None:
    (dump / TENSORS).write_bytes((dump / TENSORS).read_bytes()[:-9])


def link(dump: Path) -> None:
    (dump / TENSORS).rename(dump.parent / "elsewhere")
    (dump / TENSORS).symlink_to(dump.parent / "elsewhere")


def lie(dump: Path) -> None:
    manifest = json.loads((dump / MANIFEST).read_text())
    offence = manifest["offences"][0]
    manifest |= {"action": "trapped", "offences": [offence | {"value": offence["value"] + 1}]}
    (dump / MANIFEST).write_text(json.dumps(manifest))


def unlist(dump: Path) -> None:
    manifest = json.loads((dump / MANIFEST).read_text())
    del manifest["files"][TENSORS]
    (dump / MANIFEST).write_text(json.dumps(manifest))
    (dump / TENSORS).unlink()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "another-hash": flip,
    "truncated": truncate,
    "absent": lambda dump: (dump / TENSORS).unlink(),
    "a-link": link,
    "absent-and-not-listed": unlist,
    "numbers-that-contradict-the-tensors": lie,
}


@pytest.fixture(params=DAMAGES.values(), ids=list(DAMAGES))
def damaged(request, tmp_path) -> Path:
    dump = shutil.copytree(SEED / FIRST, tmp_path / FIRST)
    request.param(dump)
    return dump


def test_it_is_said_first_capped_and_exit_4_in_every_verb(cli, damaged, tmp_path):
    assert verify_dump(SEED / FIRST).ok
    assert not verify_dump(damaged).ok
    code, out, _ = cli("diagnose", damaged, "--json")
    found = json.loads(out)
    assert (code, found["exit_code"], found["damaged"][0]["dump_id"]) == (4, 4, FIRST)
    assert found["damaged"][0]["problems"] == list(read_dump(damaged).damage)
    findings = found["incidents"][0]["findings"]
    assert findings[0]["rule"] == "draft-swa-state-stale"
    assert "certain" not in {one["confidence"] for one in findings if one["kind"] == "cause"}
    for verb in ("diagnose", "report", "dumps show"):
        code, out, _ = cli(*verb.split(), damaged)
        assert (code, out.split(":")[0]) == (4, "damaged"), verb
        assert "CERTAIN" not in out, verb
    page, xml, sarif = tmp_path / "x.html", tmp_path / "x.xml", tmp_path / "x.sarif"
    code, out, _ = cli("report", damaged, "-o", page, "--junit", xml, "--sarif", sarif, "--json")
    assert (code, json.loads(out)["exit_code"]) == (4, 4)
    assert all(f"damaged: {FIRST}" in path.read_text() for path in (page, xml, sarif))


def test_what_stands_in_its_files_is_possible_at_most(cli, tmp_path):
    case = CORPUS / "one-untranslated-row"
    store = shutil.copytree(case, tmp_path / "store")
    (tensors,) = store.rglob(TENSORS)
    flip(tensors.parent)
    code, out, _ = cli("diagnose", "--dir", store, "--json")
    found = {one["rule"]: one for one in json.loads(out)["incidents"][0]["findings"]}
    assert code == 4
    assert any("[" in piece["field"] for piece in found["row-not-translated"]["evidence"])
    assert found["row-not-translated"]["confidence"] == "possible"


def test_others_beside_it_speak_as_before(cli, tmp_path):
    store = tmp_path / "store"
    shutil.copytree(CORPUS / "negative-page", store)
    shutil.copytree(SEED / FIRST, store / FIRST)
    flip(store / FIRST)
    _, alone, _ = cli("diagnose", "--dir", CORPUS / "negative-page", "--json")
    code, out, _ = cli("diagnose", "--dir", store, "--json")
    whole, spoiled = json.loads(out)["incidents"]
    assert code == 4
    assert [one["confidence"] for one in whole["findings"]] == [
        one["confidence"] for one in json.loads(alone)["incidents"][0]["findings"]
    ]
    assert spoiled["findings"][0]["confidence"] == "possible"
