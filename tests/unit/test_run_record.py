"""verdict.json: what is written is read back, files of 1.0 are read, and damage is an error with a reason."""

import json
import shutil
import typing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from gemma4_dumps.errors import DumpError, DumpIncompatible, DumpUnreadable
from gemma4_repro.errors import OutputUnwritable
from gemma4_triage.runs import record as records
from gemma4_triage.runs.comparison_record import ComparisonRun
from gemma4_triage.runs.corpus_record import CorpusRun
from gemma4_triage.runs.record import CellRun, ScenarioRun
from gemma4_triage.runs.record_file import decode_record, encode_record, read_record, write_record

DATA = Path(__file__).parents[1] / "data"
FILES = sorted(DATA.glob("*_runs/*/verdict.json"))
OF_1_0 = [path for path in FILES if json.loads(path.read_text())["schema_version"] == "1.0"]
KINDS = [ScenarioRun, CellRun, CorpusRun, ComparisonRun]


def strategy(annotation, metadata=()):
    """Values that a field takes. Of the constraints the records' own are known: names, versions, ranges, lengths."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return strategy(arguments[0], (*metadata, *annotation.__metadata__))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        fewest = max((getattr(limit, "min_length", 0) for limit in metadata), default=0)
        return st.lists(
            strategy(arguments[0]), min_size=fewest, max_size=max(2, fewest) if fewest == 0 else fewest
        ).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=8), strategy(arguments[1]), max_size=2)
    if arguments:
        return st.one_of(*(strategy(one, metadata) for one in arguments))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return record_of(annotation)
    known = {
        str: st.text(max_size=20),
        int: st.integers(0, 9),
        bool: st.booleans(),
        float: st.floats(0, 1e9),
        type(None): st.none(),
        typing.Any: st.one_of(st.integers(), st.text(max_size=5), st.floats(-1e9, 1e9), st.none(), st.booleans()),
    }
    return known[annotation]


def record_of(model):
    """Records of this kind."""
    fields = typing.get_type_hints(model, include_extras=True)
    made = {}
    for name, field in model.model_fields.items():
        if fields[name] in (records.FolderName, records.Version):
            made[name] = st.just("1.1") if fields[name] is records.Version else st.sampled_from(["a", "b-c", "d_e"])
        else:
            made[name] = strategy(fields[name], field.metadata)
    return st.fixed_dictionaries(made).map(model.model_validate)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", KINDS)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_written_is_read_back(model, data):
    written = data.draw(record_of(model))
    assert decode_record(encode_record(written).encode()) == written


@pytest.mark.parametrize("path", OF_1_0, ids=lambda path: path.parent.name)
class TestFilesOf10:
    def test_nothing_that_they_say_is_lost_or_changed(self, path):
        document = json.loads(path.read_text()) | {"schema_version": "1.1"}
        found = json.loads(encode_record(read_record(path.parent)))

        def held(old, new, where):
            if isinstance(old, dict):
                assert isinstance(new, dict), where
                assert not set(old) - set(new), where
                for name in old:
                    held(old[name], new[name], f"{where}.{name}")
            elif isinstance(old, list):
                assert len(old) == len(new), where
                for number, (one, other) in enumerate(zip(old, new, strict=True)):
                    held(one, other, f"{where}.{number}")
            else:
                assert old == new, where

        held(document, found, "verdict")

    def test_their_keys_stand_in_the_order_of_the_file(self, path):
        old, new = json.loads(path.read_text()), json.loads(encode_record(read_record(path.parent)))
        assert [name for name in new if name in old] == list(old)


def test_a_check_of_a_1_0_file_knows_the_dump_that_its_text_names():
    run = read_record(DATA / "finished_runs" / "e4b-trtllm")
    (arm,) = [arm for arm in run.arms if arm.id == "fault-probes"]
    (check,) = [check for check in arm.checks if check.dump]
    assert check.dump == arm.dumps[0].path
    assert check.observed == f"{check.brief} [dump: {check.dump}]"
    assert "crashed (SIGKILL): TrappedViolation" in check.brief


def test_a_dump_is_known_by_its_name_wherever_the_run_lay_when_the_error_was_logged():
    named = "crashed: TrappedViolation: page 65 [dump: /before/arm/dumps/b]; answered: 1 of 2"
    dumps = ["/now/arm/dumps/bb", "/now/arm/dumps/b"]
    assert records.dump_named(named, dumps) == "/now/arm/dumps/b"
    assert records.dump_named("no violation, 2 dumps", dumps) is None
    check = records.CheckRecord(expected="", observed=named, status="ok", dump=dumps[1])
    assert check.brief == "crashed: TrappedViolation: page 65"


MUTABLE = DATA / "finished_runs"
RANDOM_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Yield the path of everything in a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield (*path, name)
        yield from places(child, (*path, name))


@st.composite
def damaged(draw):
    """Return a verdict of a finished run: cut, with other bytes in it, or with other values and without some."""
    path = draw(st.sampled_from([MUTABLE / name / "verdict.json" for name in ("corpus", "diff-patches", "e4b-trtllm")]))
    data = path.read_bytes()
    how = draw(st.sampled_from(["cut", "bytes", "values"]))
    if how == "cut":
        return data[: draw(st.integers(0, len(data) - 1))]
    if how == "bytes":
        at = draw(st.integers(0, len(data) - 1))
        return data[:at] + draw(st.binary(max_size=4)) + data[at + draw(st.integers(0, 4)) :]
    document = json.loads(data)
    for _ in range(draw(st.integers(1, 3))):
        *parents, name = draw(st.sampled_from(list(places(document))))
        holder = document
        for parent in parents:
            holder = holder[parent]
        if draw(st.booleans()) and isinstance(holder, dict):
            del holder[name]
        else:
            holder[name] = draw(RANDOM_JSON)
    return json.dumps(document).encode()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=damaged())
def test_damage_is_read_as_a_record_or_is_an_error_with_a_reason(data):
    try:
        read = decode_record(data)
    except DumpError as error:
        assert str(error).strip()
    else:
        assert decode_record(encode_record(read).encode()) == read


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=damaged())
def test_a_report_of_a_damaged_verdict_never_ends_in_a_traceback(cli, tmp_path, data):
    (tmp_path / "verdict.json").write_bytes(data)
    code, _, err = cli("report", tmp_path, "--markdown", tmp_path / "report.md", "--force")
    assert code in (0, 1, 4, 5), err
    assert code != 4 or f"error: {tmp_path}/verdict.json" in err


def test_another_major_version_is_refused_by_name(cli, tmp_path):
    path = shutil.copy(MUTABLE / "e4b-trtllm" / "verdict.json", tmp_path)
    Path(path).write_text(Path(path).read_text().replace('"schema_version": "1.0"', '"schema_version": "2.0"'))
    with pytest.raises(DumpIncompatible, match=r"verdict\.json has schema 2\.0; this release reads 1\.x"):
        read_record(tmp_path)
    code, _, err = cli("report", tmp_path)
    assert (code, "has schema 2.0" in err) == (4, True)


def test_a_later_minor_version_is_read_without_what_is_not_known():
    document = json.loads((MUTABLE / "e4b-trtllm" / "verdict.json").read_text())
    document |= {"schema_version": "1.9", "weather": "fine"}
    document["arms"][0]["mood"] = ["good"]
    assert decode_record(json.dumps(document).encode()).scenario == "e4b-trtllm"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "it holds an array, not an object"),
        ("7", "it holds a number, not an object"),
        ("null", "it holds null, not an object"),
        ('{"kind": "repro", "exit_code": 0}', "schema_version"),
        ('{"schema_version": 1.0, "kind": "repro", "exit_code": 0}', "schema_version"),
        ('{"schema_version": "1.0", "kind": ["repro"], "exit_code": 0}', "kind"),
        ('{"schema_version": "1.0", "kind": "repro", "exit_code": 0, "exit_code": 1}', "twice"),
        ('{"schema_version": "1.0", "kind": "repro", "exit_code": NaN}', "not JSON"),
        ('{"schema_version": "1.0", "kind": "repro"}', "exit_code"),
        ('{"schema_version": "1.0", "kind": "repro", "symptom": "\\ud800", "exit_code": 0}', "not JSON"),
        ('{"a":' * 5000, "not JSON"),
    ],
)
def test_what_is_no_verdict_says_where(tmp_path, text, said):
    (tmp_path / "verdict.json").write_text(text)
    with pytest.raises(DumpUnreadable, match="is not the verdict of a run") as caught:
        read_record(tmp_path)
    assert said in str(caught.value)


def test_a_record_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    run = read_record(MUTABLE / "e4b-trtllm")
    path = write_record(run, tmp_path)
    before = path.read_text()

    def full(self, text, **_):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputUnwritable, match="No space left on device"):
        write_record(run.model_copy(update={"symptom": "another"}), tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["verdict.json"]
    assert path.read_text() == before
