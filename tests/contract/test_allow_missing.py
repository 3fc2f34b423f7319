"""GEMMA4_TRIAGE_ALLOW_MISSING: a probe that cannot attach is left out, named and recorded. Nothing else may be."""

from dataclasses import replace

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_runtime.attachment import Attachment
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import PatchConflict, PatchTargetMissing, UnsupportedRelease, VerificationFailed
from gemma4_runtime.patch import Bind, Hook, How, Kind, Patch
from gemma4_runtime.settings import ALLOW_MISSING, read_settings
from gemma4_runtime.targets import TARGETS
from gemma4_triage.inspection.environment import survey
from gemma4_triage.inspection.guard_lines import guard_lines

RELEASE = "0.5.13.post1"
PAGE_TABLE, SWA_ALLOCATOR = PROBES = tuple(patch for patch in CATALOG if patch.id in ("page-table", "swa-allocator"))
# All of its targets exist but one.
BROKEN = replace(SWA_ALLOCATOR, attachments=(*SWA_ALLOCATOR.attachments, Hook("gone", How.AFTER, "m:f")))
FIXES = tuple(patch for patch in CATALOG if patch.kind is Kind.FIX and patch.default)
GONE = "sglang.srt.mem_cache.allocator.swa.SWATokenToKVPoolAllocator.no_such_method"


# It takes a target from the base release's table; the table of a later one is that with its changes.
pytestmark = [pytest.mark.usefixtures("nothing_left_behind"), pytest.mark.releases("0.5.13.post1")]


@pytest.fixture
def gone(monkeypatch):
    """Give the table the target that BROKEN names besides its own, and that SGLang does not have."""
    monkeypatch.setitem(TARGETS[RELEASE], "gone", GONE)


@pytest.fixture
def run_session(start_session):
    """Return what starts and stops a session of the default fixes and two probes, and returns its manifest."""
    return lambda allow, patches=(*FIXES, PAGE_TABLE, BROKEN): start_session(patches, **{ALLOW_MISSING: allow})


def rows(manifest):
    return {row["id"]: row for row in manifest["patches"]}


@pytest.mark.parametrize("allow", ["", "0"])
def test_not_allowed_is_refused_as_ever(run_session, gone, allow):
    with pytest.raises(PatchTargetMissing, match=r"swa-allocator.*no_such_method"):
        run_session(allow)


@pytest.mark.usefixtures("gone")
class TestAProbeWithoutATarget:
    def test_it_is_recorded_with_the_reason(self, run_session):
        manifest = run_session("1")
        row = rows(manifest)["swa-allocator"]
        assert row["attached"] is False
        assert row["targets"] == []
        assert "no_such_method is missing" in row["reason"]
        assert "self_test" not in row
        assert manifest["settings"]["allow_missing"] is True

    def test_the_others_are_attached_and_verified(self, run_session):
        manifest = run_session("1")
        others = [row for name, row in rows(manifest).items() if name != "swa-allocator"]
        assert all(row["attached"] and "reason" not in row for row in others)
        assert manifest["verified"] is True

    def test_it_is_named_loudly(self, run_session, capsys):
        run_session("1")
        said = capsys.readouterr().err
        assert "PROBE NOT ATTACHED: swa-allocator: " in said
        assert "no_such_method is missing" in said
        assert said.count("PROBE NOT ATTACHED") == 1

    def test_nothing_of_it_is_attached(self):
        attachment = Attachment((PAGE_TABLE, BROKEN), RELEASE, allow_missing=True)
        attachment.register()
        hooked = set(HookRegistry._hooks)
        attachment.uninstall()
        assert hooked == {TARGETS[RELEASE][hook.target] for hook in PAGE_TABLE.attachments_in(RELEASE)}

    def test_doctor_and_dumps_show_say_so(self, run_session):
        manifest = run_session("1")
        assert any("swa-allocator (NOT ATTACHED: patch swa-allocator: target" in line for line in guard_lines(manifest))
        (last,) = [check for check in survey(read_settings()) if check.name == "last guarded process"]
        assert last.state == "note"
        assert "(not swa-allocator)" in last.detail


class TestAProbeOfAnotherRelease:
    def foreign(self):
        return tuple(replace(probe, since="0.5.23", until="0.5.23") for probe in PROBES)

    def test_it_is_left_out(self, run_session):
        manifest = run_session("1", (*FIXES, *self.foreign()))
        assert [name for name, row in rows(manifest).items() if not row["attached"]] == [p.id for p in PROBES]
        assert rows(manifest)["page-table"]["reason"].endswith("written for SGLang 0.5.23 and later")

    def test_not_allowed_it_is_refused(self, run_session):
        with pytest.raises(UnsupportedRelease):
            run_session("0", self.foreign())

    def test_so_is_a_release_without_a_table(self):
        probe = replace(PROBES[0], since="0.4.0", until="0.4.0")
        attachment = Attachment((probe,), "0.4.0", allow_missing=True)
        attachment.register()
        assert "SGLang 0.4.0 is not known" in attachment.missing[probe.id]
        assert attachment.status()[0]["attached"] is False
        attachment.uninstall()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.PROBE])
class TestNothingElseMayBeMissing:
    def test_a_target(self, gone, kind):
        patch = Patch("other", kind, "t", "o", "u", (Hook("gone", How.AFTER, "m:f"),), needs=())
        with pytest.raises(PatchTargetMissing):
            Attachment((patch,), RELEASE, allow_missing=True).register()

    def test_a_release(self, kind):
        patch = Patch("other", kind, "t", "o", "u", (Hook("swa.alloc", How.AFTER, "m:f"),), needs=())
        patch = replace(patch, since="0.5.23", until="0.5.23")
        with pytest.raises(UnsupportedRelease):
            Attachment((patch,), RELEASE, allow_missing=True).register()


def test_a_conflict_is_still_an_error():
    bind = Bind("logits.softcap", "gemma4_runtime.host.torch_forms:softcap_inplace")
    probes = tuple(replace(PROBES[0], id=name, attachments=(bind,)) for name in ("a", "b"))
    with pytest.raises(PatchConflict):
        Attachment(probes, RELEASE, allow_missing=True).register()


def test_a_probe_that_sglang_did_not_apply_is_still_an_error():
    attachment = Attachment(PROBES, RELEASE, allow_missing=True)
    attachment.register()
    with pytest.raises(VerificationFailed):
        attachment.verify()
    attachment.uninstall()


def test_alone_it_asks_for_nothing(monkeypatch):
    monkeypatch.setenv(ALLOW_MISSING, "1")
    assert read_settings().wants_nothing
