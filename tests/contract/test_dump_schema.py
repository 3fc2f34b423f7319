"""The published schema, the redaction list and the install boundary are promises; these tests hold them."""

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gemma4_dumps
from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.redaction import names_a_secret
from gemma4_dumps.schema import VERDICTS, Manifest, Offence, manifest_json_schema
from gemma4_dumps.writer import write_dump
from gemma4_runtime.checks.violation import BadIndex
from gemma4_triage.report.model.records import Offence as ReportedOffence

PACKAGE = Path(gemma4_dumps.__file__).parent
ROOT = Path(__file__).parents[2]


def test_the_published_schema_is_the_generated_one():
    published = json.loads((PACKAGE / "manifest.schema.json").read_text())
    assert published == manifest_json_schema(), (
        "python -m gemma4_dumps.schema > dumps/gemma4_dumps/manifest.schema.json"
    )


def test_each_verdict_of_a_committed_dump_is_described():
    found = {
        json.loads(path.read_text())["verdict"]
        for folder in ("mutation_dumps", "corpus_dumps", "contained_dumps")
        for path in (ROOT / "tests" / "data" / folder).rglob("manifest.json")
    }
    assert len(found) > 20
    assert found <= set(VERDICTS)


def test_a_written_manifest_fits_the_published_schema(tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    tensors = {"x": TensorPayload.from_array(np.zeros((2, 3)))}
    draft = DumpDraft(
        rule="r", verdict="negative", summary="s", mode="log", action="logged", site="a.b", tensors=tensors
    )
    path = write_dump(tmp_path, draft).path
    assert path is not None
    published = json.loads((PACKAGE / "manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads((path / "manifest.json").read_text()), published)


def test_every_manifest_field_that_a_probe_knows_is_in_the_draft():
    from_the_writer = {
        "schema_version",
        "dump_id",
        "host",
        "dropped",
        "truncated",
        "files",
        "included",
        "manifest_sha256",
    }
    draft_fields = set(DumpDraft.__dataclass_fields__)
    assert set(Manifest.model_fields) - from_the_writer <= draft_fields
    assert draft_fields - set(Manifest.model_fields) == {"events", "dropped_events", "rank"}


def test_a_field_of_a_bad_entry_has_one_name_from_the_kernel_to_the_report():
    """So that each record is filled from the one before field by field of the same name."""
    findings = pytest.importorskip("gemma4_kernels.page_guard.findings")
    checked = {field.name for field in dataclasses.fields(BadIndex)}
    assert checked == {"row", "column", "value", "lower", "upper"}
    assert set(findings.Offence._fields) == checked | {"array", "row_count"}
    assert set(findings.Overflow._fields) == checked | {"array"}
    assert set(Offence.model_fields) == checked | {"table", "request_slot"}
    assert set(ReportedOffence.model_fields) == set(Offence.model_fields)


@pytest.mark.releases("0.5.13.post1", "0.5.23")
def test_of_sglangs_arguments_only_the_secrets_are_redacted():
    from sglang.srt.server_args import ServerArgs

    fields = getattr(ServerArgs, "__struct_fields__", ()) or ServerArgs.__dataclass_fields__
    flags = {"--" + name.replace("_", "-") for name in fields}
    assert len(flags) > 200
    secrets = {"--api-key", "--admin-api-key", "--ssl-keyfile-password", "--watermark-key", "--watermark-key-b"}
    assert {flag for flag in flags if names_a_secret(flag)} == secrets & flags


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_imports_stay_light(path):
    allowed = set(sys.stdlib_module_names) | {"numpy", "safetensors", "pydantic", "pydantic_core"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {name.name.partition(".")[0] for name in node.names} <= allowed
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert (node.module or "").partition(".")[0] in allowed


def test_the_whole_package_imports_without_torch():
    names = ", ".join(f"gemma4_dumps.{path.stem}" for path in PACKAGE.glob("*.py") if path.stem != "__init__")
    code = f"import sys, {names}; print(sorted({{'torch', 'sglang', 'typer', 'rich'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
