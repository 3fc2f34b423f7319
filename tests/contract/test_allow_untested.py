"""GEMMA4_TRIAGE_ALLOW_UNTESTED: beside an SGLang of no known release probes attach, and say so. Nothing else does."""

from dataclasses import replace

import pytest

from gemma4_runtime import session as session_module
from gemma4_runtime.attachment import Attachment
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import PatchTargetMissing, UnsupportedRelease
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import BASE, RUNNABLE, installed_or_base, nearest
from gemma4_runtime.selection import select
from gemma4_runtime.settings import read_settings
from gemma4_runtime.standing import refusal, unknown
from gemma4_runtime.targets import TARGETS
from gemma4_triage.inspection.guard_lines import guard_lines

pytestmark = [pytest.mark.releases("0.5.13.post1", "0.5.23"), pytest.mark.usefixtures("nothing_left_behind")]
NEAREST = installed_or_base()
# Of the installed release's targets, under another name.
UNKNOWN = "0.5.15" if NEAREST == BASE else "0.5.22"
PROBES = tuple(patch for patch in CATALOG if patch.id in ("page-table", "swa-allocator", "process-end"))


@pytest.fixture
def run_session(monkeypatch, start_session):
    """Return what starts and stops a session beside the unknown release, and returns its manifest."""

    def run(allow):
        monkeypatch.setattr(session_module, "sglang_version", UNKNOWN)
        return start_session(PROBES, GEMMA4_TRIAGE_ALLOW_UNTESTED=allow)

    return run


@pytest.mark.parametrize(
    ("release", "known", "runs"),
    [
        ("0.5.15", BASE, BASE),
        ("0.5.16", "0.5.17", BASE),
        ("0.5.17", "0.5.17", BASE),
        ("0.5.18", "0.5.17", BASE),
        ("0.5.19", "0.5.17", "0.5.23"),
        ("0.5.21", "0.5.23", "0.5.23"),
        ("0.5.22", "0.5.23", "0.5.23"),
        ("0.5.23", "0.5.23", "0.5.23"),
        ("0.5.24", "0.5.23", "0.5.23"),
        ("0.6.0", "0.5.23", "0.5.23"),
        ("0.4.9", BASE, BASE),
        ("of-a-branch", BASE, BASE),
    ],
)
def test_the_nearest_is_that_by_number(release, known, runs):
    assert (nearest(release), nearest(release, RUNNABLE)) == (known, runs)


def test_where_patches_run_on_another_than_the_nearest_both_are_named():
    assert unknown("0.5.18") == (
        f"SGLang 0.5.18 is not known; the nearest that is known is 0.5.17, "
        f"and the nearest on which patches run is {BASE}"
    )


def test_not_allowed_it_is_refused_and_the_nearest_is_named(run_session):
    with pytest.raises(UnsupportedRelease, match=f"SGLang {UNKNOWN} is not known; .*{NEAREST}") as refused:
        run_session("0")
    assert "--allow-untested --patches none" in refused.value.hint


def test_probes_attach_fire_and_say_so(run_session, capsys):
    manifest = run_session("1")
    assert manifest["verified"] is True
    assert manifest["settings"]["allow_untested"] is True
    for row in manifest["patches"]:
        assert (row["attached"], row["self_test"]) == (True, "fired")
        assert row["untested"] == f"SGLang {UNKNOWN}, as on {NEAREST}"
    said = capsys.readouterr().err
    assert f"UNTESTED on SGLang {UNKNOWN}: page-table, swa-allocator, process-end attach as on {NEAREST}" in said
    assert any(f"page-table (UNTESTED on SGLang {UNKNOWN}, as on {NEAREST}" in line for line in guard_lines(manifest))


def test_on_a_known_release_nothing_is_said(run_session, monkeypatch):
    monkeypatch.setitem(globals(), "UNKNOWN", NEAREST)
    assert not any("untested" in row for row in run_session("1")["patches"])


def test_a_missing_target_stops_the_start(run_session, monkeypatch):
    monkeypatch.setitem(TARGETS[NEAREST], "swa.alloc", f"{TARGETS[NEAREST]['swa.alloc']}_of_no_release")
    with pytest.raises(PatchTargetMissing, match="swa-allocator"):
        run_session("1")


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.PROBE])
def test_nothing_but_probes_attaches(kind):
    patch = next(patch for patch in CATALOG if patch.kind is kind)
    with pytest.raises(UnsupportedRelease):
        Attachment((patch,), UNKNOWN, allow_untested=True).register()
    assert refusal(patch, UNKNOWN)


def test_probes_that_the_nearest_does_not_have_are_left_out(monkeypatch):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
    monkeypatch.setenv("GEMMA4_TRIAGE_ALLOW_UNTESTED", "1")
    older = tuple(replace(patch, until=BASE) if patch.id == "geometry" else patch for patch in CATALOG)
    chosen = {patch.id for patch in select(read_settings(), older, release="0.5.24")}
    assert "geometry" not in chosen
    assert {"page-table", "request-rows"} <= chosen
