"""Settings: every value is read as documented or refused by name."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemma4_runtime.errors import SettingsError
from gemma4_runtime.settings import VARIABLES, DeviceModel, HostEngine, Mode, read_settings


def test_nothing_set_wants_nothing():
    assert read_settings().wants_nothing


@pytest.mark.parametrize(
    ("value", "mode"),
    [
        ("0", Mode.OFF),
        ("", Mode.OFF),
        ("off", Mode.OFF),
        ("log", Mode.LOG),
        ("contain", Mode.CONTAIN),
        ("trap", Mode.TRAP),
        ("1", Mode.ON),
    ],
)
def test_debug_modes(monkeypatch, value, mode):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", value)
    assert read_settings().mode is mode


def test_one_is_trap_outside_graphs_and_contain_inside():
    assert (Mode.ON.at(in_graph=False), Mode.ON.at(in_graph=True)) == (Mode.TRAP, Mode.CONTAIN)
    assert all(mode.at(in_graph) is mode for mode in Mode if mode is not Mode.ON for in_graph in (True, False))


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("SGLANG_TRTLLM_MHA_DEBUG", "banana", "0, off, log, contain, trap, 1"),
        ("GEMMA4_TRIAGE_LEAK", "banana", "0, off, dump, raise"),
        ("GEMMA4_TRIAGE_LEAK_EVERY", "-1", "1 or more"),
        ("GEMMA4_TRIAGE_LEAK_EVERY", "often", "a number of scheduler steps"),
        ("GEMMA4_TRIAGE_VISION_BUDGET_MB", "1.5", "a number of MiB"),
        ("GEMMA4_TRIAGE_HOST_ENGINE", "yes", "0, off, 1, force"),
        ("GEMMA4_TRIAGE_DEVICE_MODEL", "sm80", "sm100, sm90"),
        ("GEMMA4_TRIAGE_FAULTS", "a,a", "named twice: a"),
        ("GEMMA4_TRIAGE_INCLUDE", "kv,prompts", "kv, tokens, or both with a comma between them"),
        ("GEMMA4_TRIAGE_INCLUDE", "1", "kv, tokens, or both"),
        ("GEMMA4_TRIAGE_INCLUDE", "kv,kv", "named twice: kv"),
    ],
)
def test_a_bad_value_names_variable_value_and_choices(monkeypatch, variable, value, allowed):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert variable in str(caught.value)
    assert repr(value) in str(caught.value)
    assert allowed in str(caught.value)


def test_an_empty_folder_means_unset(monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", "")
    assert read_settings().dump_dir is None


def test_every_bad_variable_is_named_at_once(monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "banana")
    monkeypatch.setenv("GEMMA4_TRIAGE_DEVICE_MODEL", "pear")
    with pytest.raises(SettingsError, match=r"(?s)banana.*pear"):
        read_settings()


def test_a_misspelt_variable_is_refused(monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_PATCH", "default")
    with pytest.raises(SettingsError, match=r"GEMMA4_TRIAGE_PATCH: no such setting; near it: GEMMA4_TRIAGE_PATCHES$"):
        read_settings()


def test_a_variable_like_none_is_told_which_there_are(monkeypatch):
    """An installation has no docs."""
    monkeypatch.setenv("GEMMA4_TRIAGE_XYZ", "1")
    with pytest.raises(SettingsError, match=r"XYZ: no such setting; there are GEMMA4_TRIAGE_PROBES, ") as raised:
        read_settings()
    assert set(re.findall(r"GEMMA4_TRIAGE_[A-Z_]+", str(raised.value))) >= {
        name for name in VARIABLES if name.startswith("GEMMA4_TRIAGE_")
    }


def test_choosing_probes_while_off_is_refused(monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_PROBES", "page-table")
    with pytest.raises(SettingsError, match="SGLANG_TRTLLM_MHA_DEBUG is off"):
        read_settings()


def test_host_engine_and_device_model(monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "force")
    monkeypatch.setenv("GEMMA4_TRIAGE_DEVICE_MODEL", "sm90")
    found = read_settings()
    assert (found.host_engine, found.device_model) == (HostEngine.FORCE, DeviceModel.SM90)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    variable=st.sampled_from(VARIABLES),
    value=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40),
)
def test_any_text_is_read_or_refused_by_name(variable, value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, value)
        try:
            read_settings()
        except SettingsError as error:
            assert variable in str(error)


def test_an_audit_interval_without_an_audit_is_refused(monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_LEAK_EVERY", "8")
    with pytest.raises(SettingsError, match="GEMMA4_TRIAGE_LEAK is off"):
        read_settings()
    monkeypatch.setenv("GEMMA4_TRIAGE_LEAK", "dump")
    assert read_settings().leak_every == 8


@pytest.mark.parametrize(("mode", "probes"), [("off", ""), ("trap", "swa-allocator")])
def test_including_kv_values_where_nothing_would_is_refused(monkeypatch, mode, probes):
    monkeypatch.setenv("GEMMA4_TRIAGE_INCLUDE", "kv")
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", mode)
    monkeypatch.setenv("GEMMA4_TRIAGE_PROBES", probes)
    with pytest.raises(SettingsError, match=r"GEMMA4_TRIAGE_INCLUDE='kv' .* page-table, which is not on"):
        read_settings()


def test_what_dumps_include(monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
    assert read_settings().include == ()
    monkeypatch.setenv("GEMMA4_TRIAGE_PROBES", "page-table,swa-allocator")
    monkeypatch.setenv("GEMMA4_TRIAGE_INCLUDE", "tokens, kv")
    assert read_settings().include == ("tokens", "kv")
    assert read_settings().include_text == "token ids and KV values"
