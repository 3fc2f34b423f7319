"""`gemma4-triage patches list` and `patches explain`."""

import json

import pytest

from gemma4_dumps.errors import ExitCode
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import refusal
from gemma4_triage.cli.app import main


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    return tmp_path


def document(capsys, *words):
    assert main(["patches", *words, "--json"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def guard_manifest(root, name, **row):
    (root / "guards").mkdir(exist_ok=True)
    manifest = {"pid": 7, "created_utc": "2026-11-22T00:00:00+00:00", "verified": True, "patches": [row]}
    (root / "guards" / f"{name}.json").write_text(json.dumps(manifest))


def test_bare_patches_is_the_list(capsys):
    assert document(capsys) == document(capsys, "list")
    assert document(capsys, "--kind", "fault") == document(capsys, "list", "--kind", "fault")


def test_the_list_has_every_patch(capsys):
    rows = document(capsys, "list")["patches"]
    assert [row["id"] for row in rows] == [patch.id for patch in CATALOG]
    assert {"id", "kind", "origin", "upstream", "default", "state", "selected"} <= set(rows[0])
    assert main(["patches", "list"]) == ExitCode.OK
    printed = capsys.readouterr()
    # Only the longest may be folded.
    assert all(patch.id[:25] in printed.out for patch in CATALOG)
    assert "patches explain ID" in printed.err


@pytest.mark.parametrize(
    ("patch", "variables", "state"),
    [
        ("yoco", {}, "off: GEMMA4_TRIAGE_PATCHES is unset; `gemma4-triage serve` sets default, which has it"),
        ("yoco", {"GEMMA4_TRIAGE_PATCHES": "default,-yoco"}, "off: GEMMA4_TRIAGE_PATCHES=default,-yoco leaves it out"),
        (
            "yoco",
            {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_GEMMA4_YOCO": "0"},
            "off: SGLANG_GEMMA4_YOCO=0 has the last word",
        ),
        (
            "yoco",
            {"GEMMA4_TRIAGE_PATCHES": "default", "GEMMA4_TRIAGE_FAULTS": "yoco-stale-cache-loc"},
            "off: GEMMA4_TRIAGE_FAULTS names yoco-stale-cache-loc, which takes its place",
        ),
        ("force-eagle", {"SGLANG_GEMMA4_FORCE_EAGLE": "1"}, "on: SGLANG_GEMMA4_FORCE_EAGLE=1 has the last word"),
        (
            "piecewise-multimodal",
            {"GEMMA4_TRIAGE_PATCHES": "piecewise-multimodal", "SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM": "0"},
            "off: SGLANG_ENABLE_PIECEWISE_CUDA_GRAPH_FOR_MM=0 has the last word",
        ),
        ("page-table", {}, "off: SGLANG_TRTLLM_MHA_DEBUG is off"),
        ("page-table", {"SGLANG_TRTLLM_MHA_DEBUG": "1"}, "on: SGLANG_TRTLLM_MHA_DEBUG is on"),
        (
            "geometry",
            {"SGLANG_TRTLLM_MHA_DEBUG": "log", "GEMMA4_TRIAGE_PROBES": "page-table"},
            "off: SGLANG_TRTLLM_MHA_DEBUG is log, GEMMA4_TRIAGE_PROBES does not name it",
        ),
        (
            "swa-allocator",
            {"SGLANG_TRTLLM_MHA_DEBUG": "contain"},
            "off: SGLANG_TRTLLM_MHA_DEBUG is contain, which leaves out what waits for the device; "
            "GEMMA4_TRIAGE_PROBES=swa-allocator names it",
        ),
        ("leak-ledger", {"GEMMA4_TRIAGE_LEAK": "dump"}, "on: GEMMA4_TRIAGE_LEAK is dump"),
        ("swa-state-stale", {"GEMMA4_TRIAGE_FAULTS": "swa-state-stale"}, "on: GEMMA4_TRIAGE_FAULTS names it"),
        ("host-softcap", {}, "off: GEMMA4_TRIAGE_HOST_ENGINE is off"),
    ],
)
def test_the_state_names_the_variable_that_decides(capsys, monkeypatch, patch, variables, state):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    explained = document(capsys, "explain", patch)["patch"]
    assert explained["selected"] == state.startswith("on")
    # What the installed release has itself is off there, whatever a variable says.
    if why := refusal(next(one for one in CATALOG if one.id == patch), installed_or_base()):
        state = f"off: {why}"
    assert explained["state"] == state
    (row,) = [row for row in document(capsys)["patches"] if row["id"] == patch]
    assert row["state"] == state


# Of patches that later releases have themselves or that are not ported.
@pytest.mark.releases("0.5.13.post1")
@pytest.mark.parametrize(
    ("patch", "variables", "state"),
    [
        ("yoco", {"GEMMA4_TRIAGE_PATCHES": "default"}, "on: GEMMA4_TRIAGE_PATCHES=default has it"),
        (
            "piecewise-ple",
            {"GEMMA4_TRIAGE_PATCHES": "default,-piecewise-multimodal"},
            "on: GEMMA4_TRIAGE_PATCHES=default,-piecewise-multimodal has it",
        ),
        ("piecewise-ple", {"GEMMA4_TRIAGE_PATCHES": "default"}, "on: piecewise-multimodal needs it"),
        ("piecewise-ple", {"GEMMA4_TRIAGE_PATCHES": "piecewise-multimodal"}, "on: piecewise-multimodal needs it"),
        ("spec-v2-row-width", {"SGLANG_FROZEN_KV_MTP_V2": "1"}, "on: mtp-v2 needs it"),
        (
            "free-swa-pages",
            {"GEMMA4_TRIAGE_PATCHES": "mtp-v2,free-swa-pages"},
            "on: GEMMA4_TRIAGE_PATCHES=mtp-v2,free-swa-pages has it",
        ),
        (
            "free-swa-pages",
            {"GEMMA4_TRIAGE_PATCHES": "mtp-v2,-free-swa-pages"},
            "off: GEMMA4_TRIAGE_PATCHES=mtp-v2,-free-swa-pages leaves it out",
        ),
        (
            "free-swa-pages",
            {"GEMMA4_TRIAGE_PATCHES": "default,mtp-v2", "SGLANG_FROZEN_KV_MTP_V2": "0"},
            "off: SGLANG_FROZEN_KV_MTP_V2=0 leaves mtp-v2 out, which would bring it along",
        ),
    ],
)
def test_the_state_of_what_sglang_0_5_13_alone_takes(capsys, monkeypatch, patch, variables, state):
    test_the_state_names_the_variable_that_decides(capsys, monkeypatch, patch, variables, state)


def test_everything_about_one(capsys):
    assert main(["patches", "explain", "owner-only-kv"]) == ExitCode.OK
    shown = " ".join(capsys.readouterr().out.split())
    for word in (
        "optimisation",
        "GEMMA4_TRIAGE_PATCHES=default,-owner-only-kv",
        "sglang.srt.model_executor.model_runner.ModelRunner.adjust_hybrid_swa_layers_for_pp",
        "tests/engine/test_owner_only_kv_live.py",
        "blob/v0.5.13.post1/python/sglang/srt/model_executor/model_runner.py",
        "none on record",
    ):
        assert word in shown


def test_every_patch_can_be_explained(capsys):
    for patch in CATALOG:
        explained = document(capsys, "explain", patch.id)["patch"]
        assert all(explained[key] for key in ("attachments", "proof", "links", "why", "eligibility", "fallback"))
        assert all(row["path"].startswith("sglang.srt.") for row in explained["attachments"])


def test_what_the_last_process_made_of_it(capsys, store):
    guard_manifest(store, "1", id="routing", attached=True, paths=["fused"])
    guard_manifest(store, "2", id="routing", attached=True, paths=["fused", "hidden states on cpu"], decision="so")
    guard_manifest(store, "3", id="yoco", attached=False, reason="no target")
    (store / "guards" / "4.json").write_text("{torn")
    said = document(capsys, "explain", "routing")["patch"]["last_process"]
    assert said.startswith("attached in pid 7, 2026-11-22")
    assert said.endswith("paths taken: fused, hidden states on cpu; so")
    assert "not attached (no target)" in document(capsys, "explain", "yoco")["patch"]["last_process"]
    assert document(capsys, "explain", "page-table")["patch"]["last_process"] is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("yoko", "near it: yoco;"),
        ("YOCO", "near it: yoco-stale-cache-loc, yoco;"),
        ("Q-Only-Projektion", "near it: q-only-projection"),
        ("swa", "near it: swa-state-stale,"),
        ("sped", "near it: speed"),
        ("defualt", "near it: default"),
        ("prodution", "near it: production"),
        ("qqqqqq", "gemma4-triage patches list"),
        ("", ""),
    ],
)
def test_an_unknown_id(capsys, name, near):
    assert main(["patches", "explain", name]) == ExitCode.USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"there is no patch called '{name}'" in printed.err
    assert near in printed.err


def test_a_setting_that_no_server_would_take(capsys, monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "no-such")
    assert main(["patches", "explain", "yoco", "--json"]) == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["kind"] == "error"


def test_an_unknown_kind(capsys):
    assert main(["patches", "--kind", "no-such"]) == ExitCode.USAGE
    assert "kinds: host leaf" in capsys.readouterr().err


@pytest.mark.parametrize(("release", "nearest"), [("0.5.22", "; the nearest is 0.5.23"), ("main", "0.5.23")])
def test_a_release_that_is_not_known_is_told_the_nearest(cli, release, nearest):
    code, _, err = cli("patches", "list", "--sglang", release)
    assert code == 2
    assert f"SGLang {release!r} is not known" in err
    assert err.rstrip().endswith(nearest)
    assert ("the nearest" in err) == (release != "main")
