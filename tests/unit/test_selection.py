"""Which patches a setting selects."""

import pytest

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import PatchConflict, SettingsError
from gemma4_runtime.patch import Bind, Hook, How, Kind, Patch, check_conflicts
from gemma4_runtime.selection import left_out, select
from gemma4_runtime.settings import read_settings


def chosen(monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return [patch.id for patch in select(read_settings())]


def test_nothing_by_default(monkeypatch):
    assert chosen(monkeypatch) == []


def test_debug_selects_every_probe_and_nothing_else(monkeypatch):
    probes = [patch.id for patch in CATALOG if patch.kind is Kind.PROBE and patch.asked_by == "mode"]
    assert chosen(monkeypatch, SGLANG_TRTLLM_MHA_DEBUG="1") == probes


def test_contain_waits_for_nothing_unless_it_is_named(monkeypatch):
    waiting = [patch.id for patch in CATALOG if patch.synchronises]
    assert waiting == ["swa-allocator", "request-rows"]
    assert chosen(monkeypatch, SGLANG_TRTLLM_MHA_DEBUG="contain") == [
        patch.id
        for patch in CATALOG
        if patch.kind is Kind.PROBE and patch.asked_by == "mode" and not patch.synchronises
    ]
    assert [patch.id for patch in left_out(read_settings())] == waiting
    assert chosen(monkeypatch, GEMMA4_TRIAGE_PROBES=",".join(waiting)) == waiting
    assert left_out(read_settings()) == ()


def test_the_leak_audit_is_asked_for_by_its_own_setting(monkeypatch):
    assert chosen(monkeypatch, GEMMA4_TRIAGE_LEAK="dump") == ["leak-ledger"]


def test_the_leak_audit_stands_beside_named_probes_and_is_none_of_them(monkeypatch):
    asked = {"SGLANG_TRTLLM_MHA_DEBUG": "log", "GEMMA4_TRIAGE_LEAK": "raise"}
    assert chosen(monkeypatch, **asked, GEMMA4_TRIAGE_PROBES="page-table") == ["page-table", "leak-ledger"]
    with pytest.raises(SettingsError, match="names leak-ledger"):
        chosen(monkeypatch, **asked, GEMMA4_TRIAGE_PROBES="leak-ledger")


def test_probes_can_be_named(monkeypatch):
    assert chosen(monkeypatch, SGLANG_TRTLLM_MHA_DEBUG="log", GEMMA4_TRIAGE_PROBES="page-table") == ["page-table"]


@pytest.mark.parametrize("patches", ["", "default,-vision-batching", "vision-hf-exact"])
def test_a_budget_for_a_vision_tower_that_nothing_batches_is_refused(monkeypatch, patches):
    asked = {"GEMMA4_TRIAGE_PATCHES": patches, "GEMMA4_TRIAGE_VISION_BUDGET_MB": "512"}
    with pytest.raises(SettingsError, match="VISION_BUDGET_MB='512' is for vision-batching, which is not on"):
        chosen(monkeypatch, **asked)
    assert not read_settings().wants_nothing
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCHES", "vision-batching")
    assert read_settings().vision_budget_mb == 512
    assert chosen(monkeypatch) == ["vision-batching"]


def test_default_patches_can_be_edited(monkeypatch):
    defaults = [patch.id for patch in CATALOG if patch.default]
    assert chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default") == defaults
    edited = chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default,-swa-state-swap")
    assert edited == [name for name in defaults if name != "swa-state-swap"]
    assert chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="none,+swa-state-swap") == ["swa-state-swap"]
    assert chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="swa-state-swap") == ["swa-state-swap"]


BRINGING = [patch for patch in CATALOG if patch.brings]


@pytest.mark.parametrize("patch", BRINGING, ids=lambda patch: patch.id)
def test_what_a_patch_needs_comes_along_and_goes_by_name(monkeypatch, patch):
    needed = {patch.id, *patch.brings}
    assert set(chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES=patch.id)) == needed
    for other in patch.brings:
        assert set(chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES=f"{patch.id},-{other}")) == needed - {other}
        assert set(chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES=f"{patch.id},-{other},{other}")) == needed
        assert chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES=f"{patch.id},-{patch.id}") == []


def test_what_a_knobs_patch_needs_goes_by_name_too(monkeypatch):
    ids = chosen(monkeypatch, SGLANG_FROZEN_KV_MTP_V2="1", GEMMA4_TRIAGE_PATCHES="default,-free-swa-pages")
    assert "mtp-v2" in ids
    assert "free-swa-pages" not in ids
    assert "spec-v2-stop-window" in ids
    ids = chosen(monkeypatch, SGLANG_FROZEN_KV_MTP_V2="0", GEMMA4_TRIAGE_PATCHES="default,-free-swa-pages")
    assert ids == [patch.id for patch in CATALOG if patch.default], "and a knob that is off is no mistake"
    monkeypatch.delenv("SGLANG_FROZEN_KV_MTP_V2")
    with pytest.raises(SettingsError, match="which nothing before it chooses"):
        chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default,-free-swa-pages")


def test_a_fault_leaves_out_the_patch_whose_place_it_takes(monkeypatch):
    """Side by side the patch would hide the fault."""
    defaults = [patch.id for patch in CATALOG if patch.default]
    ids = chosen(monkeypatch, GEMMA4_TRIAGE_FAULTS="yoco-stale-cache-loc", GEMMA4_TRIAGE_PATCHES="default")
    assert ids == ["yoco-stale-cache-loc", *(name for name in defaults if name != "yoco")]


def test_yocos_own_knob_and_the_fault_in_its_place_are_refused(monkeypatch):
    fault = {"GEMMA4_TRIAGE_FAULTS": "yoco-stale-cache-loc"}
    with pytest.raises(SettingsError, match=r"SGLANG_GEMMA4_YOCO='1' .* GEMMA4_TRIAGE_FAULTS=yoco-stale-cache-loc"):
        chosen(monkeypatch, SGLANG_GEMMA4_YOCO="1", **fault)
    assert chosen(monkeypatch, SGLANG_GEMMA4_YOCO="0", **fault) == ["yoco-stale-cache-loc"]


def test_order_is_leaves_faults_fixes_probes(monkeypatch):
    ids = chosen(
        monkeypatch,
        GEMMA4_TRIAGE_HOST_ENGINE="1",
        GEMMA4_TRIAGE_FAULTS="swa-alloc-oob",
        GEMMA4_TRIAGE_PATCHES="default",
        SGLANG_TRTLLM_MHA_DEBUG="1",
    )
    kinds = [next(p.kind for p in CATALOG if p.id == name) for name in ids]
    assert kinds == sorted(kinds, key=list(Kind).index)
    # A probe must wrap a fault on the same target, or it would look before the fault acts.
    assert kinds.index(Kind.FAULT) < kinds.index(Kind.PROBE)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GEMMA4_TRIAGE_FAULTS", "swa-stale", r"swa-stale.*near it: swa-state-stale"),
        ("GEMMA4_TRIAGE_FAULTS", "swa-state-swap", "which this version does not have"),
        ("GEMMA4_TRIAGE_PATCHES", "default,-yoko", r"yoko.*near it: yoco"),
        ("GEMMA4_TRIAGE_PATCHES", "default,-nope", r"='default,-nope' names nope"),
        ("GEMMA4_TRIAGE_PATCHES", "+-swa-state-swap", "names -swa-state-swap"),
        ("GEMMA4_TRIAGE_PATCHES", "swa-state-swap,default", "can only come first"),
        ("GEMMA4_TRIAGE_PATCHES", "none,-swa-state-swap", "which nothing before it chooses"),
        ("GEMMA4_TRIAGE_PATCHES", "swa-state-stale", "which this version does not have"),
    ],
)
def test_a_name_that_does_not_fit_is_refused(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=message):
        select(read_settings())


def _patch(name: str, *attachments) -> Patch:
    return Patch(name, Kind.FIX, "t", "o", "u", attachments)


def test_two_replacements_of_one_target_conflict_by_name():
    one = _patch("one", Hook("swa.alloc", How.REPLACE, "m:f"))
    two = _patch("two", Bind("swa.alloc", "m:g"))
    with pytest.raises(PatchConflict, match=r"swa\.alloc: one, two"):
        check_conflicts([one, two])


def test_observers_and_one_replacement_share_a_target():
    check_conflicts(
        [
            _patch("one", Hook("swa.alloc", How.REPLACE, "m:f")),
            _patch("two", Hook("swa.alloc", How.AFTER, "m:g"), Hook("swa.alloc", How.AROUND, "m:h")),
        ]
    )


def test_the_whole_catalog_can_be_attached_together():
    check_conflicts(CATALOG)


def test_yocos_own_knob_has_the_last_word(monkeypatch):
    monkeypatch.setenv("SGLANG_GEMMA4_YOCO", "0")
    assert "yoco" not in chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default")
    assert "yoco" not in chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="yoco")
    assert read_settings().model_copy(update={"patches": ()}).wants_nothing
    monkeypatch.setenv("SGLANG_GEMMA4_YOCO", "1")
    assert "yoco" in chosen(monkeypatch, GEMMA4_TRIAGE_PATCHES="default,-yoco")
    monkeypatch.delenv("GEMMA4_TRIAGE_PATCHES")
    assert [patch.id for patch in select(read_settings())] == ["yoco"]
    assert not read_settings().wants_nothing
    monkeypatch.setenv("SGLANG_GEMMA4_YOCO", "")
    assert select(read_settings()) == ()


@pytest.mark.parametrize(("variable", "value"), [("SGLANG_GEMMA4_YOCO", "yes"), ("GEMMA4_TRIAGE_YOCO_ROWS", "0")])
def test_what_yoco_cannot_read_is_refused(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=rf"{variable}='{value}' cannot be read: allowed: "):
        read_settings()
