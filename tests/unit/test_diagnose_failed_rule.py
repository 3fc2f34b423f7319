"""A rule that raises takes nothing but itself from a diagnosis, and none does so on tensors of another form."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diagnose_examples import CORPUS
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import TensorRecord
from gemma4_triage.diagnose import conclude, failed_rule
from gemma4_triage.finding import Kind
from mutation_dumps import KEPT, dumps_of, named_of

CASES = sorted(path.name for path in KEPT.iterdir())
FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "flat": np.ravel,
    "without its last row": lambda found: found[:-1],
    "without its last column": lambda found: found[..., :-1],
    "empty": lambda found: found[:0],
    "negative": lambda found: -found if found.dtype.kind == "i" else found,
}
read, record_of = Dump.tensor, Dump.record


def raises(incident: Any) -> None:
    raise IndexError("too many indices")


@pytest.fixture
def broken(monkeypatch):
    """Rules of which those that were asked of page 0's entries raise."""

    def put(*rules: str) -> None:
        every = tuple(replace(rule, find=raises) if not rules or rule.id in rules else rule for rule in conclude.RULES)
        monkeypatch.setattr(conclude, "RULES", every)

    return put


def test_the_others_say_what_they_say_and_the_defect_is_a_note_behind_them(broken):
    whole = named_of(*dumps_of("mapping-zero"))
    broken("swa-page-shared")
    *others, note = named_of(*dumps_of("mapping-zero"))
    assert tuple(others) == whole
    assert (note.rule, note.kind, note.evidence[0].value) == ("rule-failed", Kind.NOTE, "IndexError: too many indices")
    assert "its rule swa-page-shared broke off" in note.cause


def test_where_nothing_else_is_found_it_is_not_said_that_nothing_is_wrong(broken):
    broken()
    found = named_of(*dumps_of("mapping-zero"))
    assert {(one.rule, one.kind) for one in found} == {(failed_rule.ID, Kind.CAUSE)}


def test_the_command_shows_the_rest_and_ends_as_with_a_defect_of_ours(cli, broken):
    broken("swa-page-shared")
    code, out, _ = cli("diagnose", KEPT / "mapping-zero", "--json")
    findings = json.loads(out)["incidents"][0]["findings"]
    assert (code, json.loads(out)["exit_code"], json.loads(out)["clean"]) == (70, 70, False)
    assert [findings[0]["rule"], findings[-1]["rule"]] == ["mapping-entry-wrong", "rule-failed"]
    code, out, _ = cli("diagnose", KEPT / "mapping-zero")
    assert code == 70
    assert "A defect of gemma4-triage, and none of the server" in out


def test_where_no_rule_raises_the_command_ends_as_ever(cli):
    assert cli("diagnose", CORPUS / "negative-page")[0] == 1


@pytest.mark.parametrize("form", FORMS)
def test_no_rule_raises_on_a_tensor_of_another_form(monkeypatch, form):
    for at, case in enumerate(CASES[list(FORMS).index(form) :: 4]):
        dumps = dumps_of(case)
        names = sorted({name for dump in dumps for name in dump.manifest.tensors})
        for name in names[at % 2 :: 2]:
            monkeypatch.setattr(Dump, "tensor", _with(name, FORMS[form]))
            monkeypatch.setattr(Dump, "record", _recorded_with(name, FORMS[form]))
            told = [one.cause for one in named_of(*dumps) if one.rule == failed_rule.ID]
            assert not told, (case, name)


def _with(name: str, form: Callable[[np.ndarray], np.ndarray]) -> Callable[[Dump, str], np.ndarray]:
    def tensor(dump: Dump, of: str) -> np.ndarray:
        found = KNOWN[key] if (key := (str(dump.path), of)) in KNOWN else KNOWN.setdefault(key, _as_stored(dump, of))
        return form(found) if of == name else found

    return tensor


KNOWN: dict[tuple[str, str], np.ndarray] = {}


def _as_stored(dump: Dump, name: str) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dump, "record", record_of)
        return read(dump, name)


def _recorded_with(name: str, form: Callable[[np.ndarray], np.ndarray]) -> Callable[[Dump, str], TensorRecord]:
    def record(dump: Dump, of: str) -> TensorRecord:
        found = record_of(dump, of)
        return found.model_copy(update={"shape": form(_as_stored(dump, of)).shape}) if of == name else found

    return record
