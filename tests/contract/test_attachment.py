"""Attaching and taking off: off means SGLang's very objects, on is verified, off again restores them."""

import json
import pkgutil
import sys
from importlib.metadata import entry_points
from types import FunctionType, ModuleType

import pytest
from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from gemma4_dumps.errors import ExitCode
from gemma4_runtime import current, plugin, session
from gemma4_runtime.attachment import Attachment, one_walk
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import (
    NotServed,
    PatchConflict,
    PatchTargetMissing,
    RuntimePatchError,
    UnsupportedRelease,
    VerificationFailed,
)
from gemma4_runtime.patch import Bind, Edit, Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE, RUNNABLE, installed_or_base
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings
from gemma4_runtime.standing import State, standing
from gemma4_runtime.targets import TARGETS

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

RELEASE = installed_or_base()
EVERYTHING = tuple(patch for patch in CATALOG if standing(patch, RELEASE).state is State.ATTACHES)
MISSING = object()
# A method that a module holds by a name of its own: HookRegistry finds that name as well.
METHOD = Gemma4DecoderLayer.forward


def snapshot():
    """Return the raw object and the code object behind every target, and who else imported it by name."""
    found = {}
    for path in TARGETS[RELEASE].values():
        owner, _, name = path.rpartition(".")
        raw = vars(pkgutil.resolve_name(owner)).get(name, MISSING)
        function = getattr(raw, "__func__", raw)
        found[path] = (raw, getattr(function, "__code__", None))
    return found


def importers():
    """Return a module that imported a hooked function by name, which HookRegistry rebinds too."""
    if RELEASE != BASE:
        return (METHOD,)
    from sglang.srt.speculative import eagle_info, frozen_kv_mtp_worker

    return eagle_info.verify_tree_greedy_func, frozen_kv_mtp_worker.target_kv_pool_view, METHOD


def same(before, after):
    return [path for path in before if before[path][0] is not after[path][0] or before[path][1] is not after[path][1]]


def patch(*attachments, id="test-patch", **more):
    return Patch(id, Kind.FIX, "t", "o", "u", attachments, **{"until": RELEASE, **more})


@pytest.fixture(autouse=True)
def nothing_left_behind():
    importers()
    before, names, hooks = snapshot(), importers(), dict(HookRegistry._hooks)
    yield
    assert same(before, snapshot()) == []
    assert all(a is b for a, b in zip(names, importers(), strict=True))
    assert dict(HookRegistry._hooks) == hooks
    assert current.in_force is None


@pytest.fixture
def by_another_plugin():
    """Return what registers a hook for another plugin; it is gone after the test."""
    paths = []

    def register(path, hook, how):
        paths.append(path)
        HookRegistry.register(path, hook, how)

    yield register
    for path in paths:
        HookRegistry._hooks.pop(path)
        HookRegistry._patched.discard(path)


def test_the_entry_point_is_the_one_sglang_looks_for():
    (found,) = [e for e in entry_points(group="sglang.srt.plugins") if e.name == "gemma4_runtime"]
    assert found.load() is plugin.load


def test_with_nothing_set_nothing_is_attached():
    before = snapshot()
    apply_hooks = HookRegistry.__dict__["apply_hooks"]
    plugin.load()
    HookRegistry.apply_hooks()
    assert same(before, snapshot()) == []
    assert HookRegistry.__dict__["apply_hooks"] is apply_hooks


@pytest.mark.parametrize("value", ["0", "off", ""])
def test_switched_off_attaches_nothing(monkeypatch, value):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", value)
    before = snapshot()
    plugin.load()
    HookRegistry.apply_hooks()
    assert same(before, snapshot()) == []


def attach_everything(monkeypatch, tmp_path):
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    # A registered fork handler cannot be taken off again, so the host engine's leaves are chosen without its setting.
    return Session(read_settings(), EVERYTHING)


def test_everything_attaches_verifies_and_comes_off_again(monkeypatch, tmp_path):
    before = snapshot()
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    HookRegistry.apply_hooks()
    assert all(row["attached"] for row in whole.manifest["patches"])
    assert {row["id"] for row in whole.manifest["patches"]} == {p.id for p in EVERYTHING}
    changed = set(same(before, snapshot()))
    assert changed == {TARGETS[RELEASE][a.target] for patch in EVERYTHING for a in patch.attachments_in(RELEASE)}
    whole.stop()
    whole.stop()
    assert same(before, snapshot()) == []


def test_whoever_holds_a_hooked_function_is_found_in_one_walk_over_all_modules(monkeypatch, tmp_path):
    class Counted(ModuleType):
        looked = 0

        @property
        def __dict__(self):
            Counted.looked += 1
            return super().__dict__

    holder = ModuleType("holder")
    shipped = {id(raw): path for path, (raw, _) in snapshot().items() if raw is not MISSING}
    for number, (raw, _) in enumerate(snapshot().values()):
        if isinstance(raw, FunctionType):
            setattr(holder, f"by_another_name_{number}", raw)
    monkeypatch.setitem(sys.modules, "holder", holder)
    monkeypatch.setitem(sys.modules, "counted", Counted("counted"))
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    HookRegistry.apply_hooks()
    walks = Counted.looked
    kept = [value for name, value in vars(holder).items() if name.startswith("by_another_name")]
    still = {shipped[id(value)] for value in kept if id(value) in shipped}
    whole.stop()
    assert walks == 1
    hooked = {
        TARGETS[RELEASE][one.target]
        for patch in EVERYTHING
        for one in patch.attachments_in(RELEASE)
        if type(one) is Hook
    }
    assert still.isdisjoint(hooked)
    assert len(kept) > len(still)


def test_a_hooked_method_of_a_class_that_another_hook_puts_there_is_found_elsewhere_too(monkeypatch, by_another_plugin):
    class Shipped:
        def method(self):
            return "shipped"

    class Replacement:
        def method(self):
            return "replacement"

    theirs, holder = ModuleType("theirs"), ModuleType("holder")
    vars(theirs).update(Another=type("Another", (), {}), Class=Shipped)
    vars(holder).update(method=Replacement.method)
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    monkeypatch.setitem(sys.modules, "holder", holder)
    # Replaced before the class, it has the modules walked while the class is still the one that shipped.
    by_another_plugin("theirs.Another", type("Other", (), {}), HookType.REPLACE)
    by_another_plugin("theirs.Class", Replacement, HookType.REPLACE)
    by_another_plugin("theirs.Class.method", lambda result, *_: f"{result}, hooked", HookType.AFTER)
    with one_walk():
        HookRegistry.apply_hooks()
    assert vars(holder)["method"](None) == "replacement, hooked"


def test_a_target_whose_module_raises_takes_no_other_hook_along(monkeypatch, tmp_path, by_another_plugin):
    (tmp_path / "raises_at_import.py").write_text("raise OSError('no such library')")
    monkeypatch.syspath_prepend(tmp_path)
    theirs, holder = ModuleType("theirs"), ModuleType("holder")
    vars(theirs).update(function=lambda: "shipped")
    vars(holder).update(vars(theirs))
    monkeypatch.setitem(sys.modules, "theirs", theirs)
    monkeypatch.setitem(sys.modules, "holder", holder)
    by_another_plugin("raises_at_import.function", lambda result, *_: result, HookType.AFTER)
    by_another_plugin("theirs.function", lambda result, *_: f"{result}, hooked", HookType.AFTER)
    with one_walk():
        HookRegistry.apply_hooks()
    assert vars(holder)["function"]() == "shipped, hooked"


def test_stopping_before_sglang_applied_the_hooks_writes_nothing(monkeypatch, tmp_path):
    apply_hooks = HookRegistry.__dict__["apply_hooks"]
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    whole.stop()
    assert HookRegistry.__dict__["apply_hooks"] is apply_hooks
    assert not list(tmp_path.rglob("*.json"))


def test_a_second_session_is_refused(monkeypatch, tmp_path):
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    with pytest.raises(RuntimePatchError, match="a session already"):
        attach_everything(monkeypatch, tmp_path).start()
    HookRegistry.apply_hooks()
    whole.stop()


def test_a_replacement_by_another_plugin_above_ours_is_noticed():
    hook = Hook("swa.alloc", How.REPLACE, "gemma4_runtime.probes.swa_allocator:around_alloc")
    attachment = Attachment((patch(hook),), RELEASE)
    attachment.register()
    path = TARGETS[RELEASE]["swa.alloc"]

    def theirs(*args): ...

    HookRegistry.register(path, theirs, HookType.REPLACE)
    HookRegistry.apply_hooks()
    with pytest.raises(VerificationFailed, match="test-patch"):
        attachment.verify()
    HookRegistry._hooks[path] = [hook for hook in HookRegistry._hooks[path] if hook[1] is not theirs]
    attachment.uninstall()


def test_nothing_registered_is_not_verified():
    with pytest.raises(VerificationFailed, match="test-patch was never registered"):
        Attachment((patch(Hook("swa.alloc", How.AFTER, "m:f")),), RELEASE).verify()


def test_attach_twice_is_the_same_as_once(monkeypatch, tmp_path):
    written = []
    for _ in range(2):
        whole = attach_everything(monkeypatch, tmp_path)
        whole.start()
        HookRegistry.apply_hooks()
        whole.stop()
        (path,) = (tmp_path / "guards").glob("*.json")
        written.append(json.loads(path.read_text()))
        assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()
    for manifest in written:
        assert manifest["verified"] is True
        assert manifest["versions"]["sglang"] == RELEASE
        probes = [row for row in manifest["patches"] if row["kind"] == "probe"]
        assert [row["self_test"] for row in probes] == ["fired"] * len(probes)


def test_other_plugins_keep_their_hooks(monkeypatch, tmp_path):
    path = TARGETS[RELEASE]["swa.alloc_decode"]
    calls = []

    def theirs(result, *args, **kwargs):
        calls.append(result)

    raw = snapshot()[path][0]
    HookRegistry.register(path, theirs, HookType.AFTER)
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    HookRegistry.apply_hooks()
    whole.stop()
    owner, _, name = path.rpartition(".")
    cls = pkgutil.resolve_name(owner)
    wrapper = vars(cls)[name]
    assert wrapper is not raw
    assert wrapper.__wrapped__ is raw
    setattr(cls, name, raw)
    HookRegistry._hooks.pop(path)
    HookRegistry._patched.discard(path)


class TestRefusals:
    def test_a_missing_target_names_patch_and_target(self, monkeypatch):
        monkeypatch.setitem(TARGETS[RELEASE], "gone", "sglang.srt.mem_cache.allocator.swa.NoSuchClass.alloc")
        with pytest.raises(PatchTargetMissing, match=r"test-patch.*NoSuchClass\.alloc"):
            Attachment((patch(Hook("gone", How.AFTER, "m:f")),), RELEASE).register()
        monkeypatch.delitem(TARGETS[RELEASE], "gone")

    def test_a_missing_attribute_does_too(self, monkeypatch):
        monkeypatch.setitem(TARGETS[RELEASE], "gone", "sglang.srt.mem_cache.allocator.swa.no_such_function")
        with pytest.raises(PatchTargetMissing, match=r"test-patch.*no_such_function"):
            Attachment((patch(Hook("gone", How.AFTER, "m:f")),), RELEASE).register()
        monkeypatch.delitem(TARGETS[RELEASE], "gone")

    def test_an_undeclared_release_names_both(self):
        (other,) = set(RUNNABLE) - {RELEASE}
        written = patch(Hook("swa.alloc", How.AFTER, "m:f"), since=other, until=other)
        with pytest.raises(UnsupportedRelease, match=rf"test-patch supports SGLang {other}, and {RELEASE} is"):
            Attachment((written,), RELEASE).register()

    def test_a_release_without_a_table(self):
        with pytest.raises(UnsupportedRelease, match=r"0\.4\.0"):
            Attachment((patch(Hook("swa.alloc", How.AFTER, "m:f"), since="0.4.0", until="0.4.0"),), "0.4.0").register()

    def test_a_changed_source_line_names_the_function(self):
        edit = Edit("swa.alloc", "this line is not there", "pass")
        with pytest.raises(PatchTargetMissing, match=r"test-patch.*alloc has changed"):
            Attachment((patch(edit),), RELEASE).register()

    def test_a_function_that_cannot_be_edited_is_named(self):
        edit = Edit("gemma4.attention_init", "sliding_window_size=self.sliding_window,", "sliding_window_size=None,")
        with pytest.raises(PatchTargetMissing, match=r"test-patch.*Gemma4Attention.__init__ cannot be edited"):
            Attachment((patch(edit),), RELEASE).register()

    def test_a_conflict_is_found_before_anything_changes(self):
        bind = "gemma4_runtime.host.torch_forms:softcap_inplace"
        with pytest.raises(PatchConflict):
            Attachment(
                (patch(Bind("logits.softcap", bind)), patch(Bind("logits.softcap", bind), id="b")), RELEASE
            ).register()

    def test_a_failure_half_way_takes_off_the_first_half(self):
        good = Bind("logits.softcap", "gemma4_runtime.host.torch_forms:softcap_inplace")
        bad = Edit("swa.alloc", "this line is not there", "pass")
        with pytest.raises(PatchTargetMissing):
            Attachment((patch(good), patch(bad, id="b")), RELEASE).register()

    def test_a_hook_that_sglang_did_not_apply_is_noticed(self):
        hook = Hook("swa.alloc", How.AFTER, "gemma4_runtime.probes.swa_allocator:before_set_mapping")
        attachment = Attachment((patch(hook),), RELEASE)
        attachment.register()
        with pytest.raises(VerificationFailed, match=r"test-patch on .*alloc"):
            attachment.verify()
        attachment.uninstall()

    def test_a_bad_setting_stops_the_process_with_code_2(self, monkeypatch, capsys):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "banana")
        with pytest.raises(SystemExit) as stopped:
            plugin.load()
        assert stopped.value.code == 2
        assert "banana" in capsys.readouterr().err

    def test_a_start_that_is_refused_stops_the_process_with_the_code_of_the_error(self, monkeypatch, capsys):
        """A refusal of ours that is no wrong setting: the environment cannot do what was asked."""
        monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "1")
        monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
        with pytest.raises(SystemExit) as stopped:
            plugin.load()
        assert stopped.value.code == ExitCode.ENVIRONMENT
        said = capsys.readouterr().err
        assert said.startswith("gemma4-triage: HostEngineRefused: ")
        assert "bug" not in said

    def test_an_argument_that_is_not_served_ends_with_its_reason_and_a_hint(self, capsys):
        """SGLang checks its arguments where nothing catches what a patch raises."""
        hook = plugin._refusing(sys.__excepthook__)
        with pytest.raises(SystemExit) as stopped:
            hook(NotServed, NotServed("mtp-v2 does not serve --x"), None)
        assert stopped.value.code == ExitCode.USAGE
        reason, hint = capsys.readouterr().err.splitlines()
        assert reason == "gemma4-triage: mtp-v2 does not serve --x"
        assert hint == f"gemma4-triage: hint: {NotServed.hint}"

    def test_sglangs_loader_does_not_swallow_it(self, monkeypatch):
        """SGLang logs an Exception from a plugin and serves on; a refusal must not end that way."""
        import sglang.srt.plugins as plugins

        monkeypatch.setattr(plugins, "_plugins_loaded", False)
        monkeypatch.setenv("GEMMA4_TRIAGE_FAULTS", "no-such-fault")
        # Other packages bring plugins too, and which comes first is the file system's choice.
        monkeypatch.setenv("SGLANG_PLUGINS", "gemma4_runtime")
        with pytest.raises(SystemExit) as stopped:
            plugins.load_plugins()
        assert stopped.value.code == 2

    def test_a_bug_of_ours_stops_the_server_too(self, monkeypatch, capsys):
        monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG", "trap")
        monkeypatch.setitem(sys.modules, "gemma4_runtime.session", None)
        with pytest.raises(SystemExit) as stopped:
            plugin.load()
        assert stopped.value.code == 70
        assert "bug in gemma4-triage" in capsys.readouterr().err

    def test_a_failed_verification_leaves_a_manifest_that_says_so(self, monkeypatch, tmp_path):
        whole = attach_everything(monkeypatch, tmp_path)
        whole.start()
        HookRegistry.apply_hooks()
        whole.attachment.uninstall()
        whole.attachment.register()
        with pytest.raises(VerificationFailed):
            whole.verify()
        whole.stop()
        states = {json.loads(path.read_text())["verified"] for path in (tmp_path / "guards").glob("*.json")}
        assert False in states

    def test_the_host_engine_needs_its_environment(self, monkeypatch):
        monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "1")
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        with pytest.raises(session.HostEngineRefused, match="TRITON_INTERPRET=1"):
            Session(read_settings()).start()


def test_faults_and_stand_ins_shout(monkeypatch, tmp_path, capsys):
    whole = attach_everything(monkeypatch, tmp_path)
    whole.start()
    HookRegistry.apply_hooks()
    whole.stop()
    shouted = capsys.readouterr().err
    assert "FAULT INJECTED: swa-state-stale" in shouted
    assert "CPU stand-ins replace" in shouted
