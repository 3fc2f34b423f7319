"""The catalog is complete, and every entry can be attached to the SGLang release that it names."""

import ast
import pkgutil
import re
import subprocess
import sys

import pytest
import sglang

from gemma4_runtime import catalog
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.catalog.shared_hooks import PAGE_HOOKS, REPORTING
from gemma4_runtime.errors import UnsupportedRelease
from gemma4_runtime.fusion.paths import FUSED, REFERENCE
from gemma4_runtime.patch import Bind, Edit, Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE, KNOWN
from gemma4_runtime.settings import KNOBS, knob_variables
from gemma4_runtime.standing import releases_of
from gemma4_runtime.targets import TARGETS, dotted_path
from gemma4_runtime.targets.deltas import DELTAS
from gemma4_runtime.vision.eligible import BATCHED, PACKED
from gemma4_runtime.yoco.short_prefill import IN_GRAPHS, SKIPPED

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

FOLDERS = {
    Kind.HOST_LEAF: "host",
    Kind.FAULT: "faults",
    Kind.FIX: "fixes",
    Kind.OPTIMISATION: "optimisations",
    Kind.PROBE: "probes",
}


def implementations(patch):
    return [a.implementation for a in patch.attachments if not isinstance(a, Edit)]


def test_ids_are_unique_words():
    ids = [patch.id for patch in CATALOG]
    assert len(ids) == len(set(ids))
    assert all(name == name.lower() and " " not in name for name in ids)


def test_every_module_of_the_catalog_holds_one_kind_and_is_joined():
    joined = []
    for info in pkgutil.iter_modules(catalog.__path__):
        module = pkgutil.resolve_name(f"gemma4_runtime.catalog.{info.name}")
        patches = getattr(module, info.name.upper(), ())
        assert len({patch.kind for patch in patches}) <= 1, info.name
        joined += patches
    assert len(joined) == len(CATALOG)
    assert {patch.id for patch in CATALOG} == {patch.id for patch in joined}


@pytest.mark.parametrize("kind", sorted({patch.kind for patch in CATALOG}))
def test_every_file_of_a_folder_is_in_the_catalog(kind):
    package = f"gemma4_runtime.{FOLDERS[kind]}"
    files = {m.name for m in pkgutil.iter_modules(pkgutil.resolve_name(package).__path__) if not m.ispkg}
    used = {
        name.split(":")[0].rpartition(".")[2]
        for patch in CATALOG
        if patch.kind is kind
        for name in implementations(patch)
        if name.startswith(f"{package}.")
    }
    assert files == used


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_implementations_and_targets_resolve(patch):
    # A hook may be shared with another kind: of what it shares, it is as if the other one were on.
    shared = {hook.implementation for hook in (*REPORTING, *(PAGE_HOOKS if patch.id == "clamp" else ()))}
    for name in implementations(patch):
        assert name.startswith(f"gemma4_runtime.{FOLDERS[patch.kind]}.") or name in shared
        pkgutil.resolve_name(name)
    for release in {sglang.__version__} & set(releases_of(patch)):
        for attachment in patch.attachments_in(release):
            path = dotted_path(release, attachment.target)
            owner, _, name = path.rpartition(".")
            resolved = pkgutil.resolve_name(owner)
            assert isinstance(attachment, Bind) or name in vars(resolved)


def test_every_target_is_used_by_a_patch_or_by_the_reproductions():
    used = {a.target for patch in CATALOG for a in patch.attachments} | {
        "scheduler.run_batch",
        "scheduler.process_input",
    }
    assert {key for table in TARGETS.values() for key in table} == used


def test_a_delta_names_keys_of_the_base_table_and_says_something_else_of_them():
    for release, delta in DELTAS.items():
        assert not [key for key, path in delta.items() if path == TARGETS[BASE].get(key)], release
    assert tuple(TARGETS) == KNOWN
    with pytest.raises(UnsupportedRelease, match=r"'mtp\.verify'.*0\.5\.23.*nothing for it there"):
        dotted_path("0.5.23", "mtp.verify")


def test_what_a_patch_takes_the_place_of_exists():
    others = {name for patch in CATALOG for name in patch.instead_of}
    assert others <= {patch.id for patch in CATALOG}
    assert all(patch.kind is Kind.FAULT for patch in CATALOG if patch.instead_of)


@pytest.mark.parametrize(
    "patch",
    [patch for patch in CATALOG if patch.absorbed and patch.kind in (Kind.FIX, Kind.OPTIMISATION)],
    ids=lambda patch: patch.id,
)
def test_what_is_said_of_upstream_names_the_release_that_absorbed_it(patch):
    assert patch.absorbed.partition(",")[0].split()[0] in patch.upstream
    assert f"open up to {KNOWN[-1]}" not in patch.upstream


@pytest.mark.parametrize("patch", [patch for patch in CATALOG if patch.own_paths], ids=lambda patch: patch.id)
def test_a_patch_that_counts_paths_shows_them(patch):
    assert any(name.endswith(":after_internal_state") for name in implementations(patch))
    assert set(patch.own_paths) <= {FUSED, REFERENCE, SKIPPED, IN_GRAPHS, BATCHED, PACKED}


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_what_changes_shipped_answers_says_so_and_is_no_default(patch):
    words = re.search(r"\(changes shipped outputs (.*)\)", patch.title)
    assert patch.meant_to_change == (words[1] if words else "")
    assert not (patch.meant_to_change and patch.default)


def test_only_repairs_are_defaults():
    assert not [
        patch.id for patch in CATALOG if patch.kind in (Kind.FAULT, Kind.HOST_LEAF, Kind.PROBE) and patch.default
    ]


def test_a_record_refuses_nonsense():
    hook = Hook("swa.alloc", How.AFTER, "m:f")
    with pytest.raises(ValueError, match="never be a default"):
        Patch("x", Kind.FAULT, "t", "o", "u", (hook,), default=True)
    with pytest.raises(ValueError, match="self test"):
        Patch("x", Kind.PROBE, "t", "o", "u", (hook,))
    with pytest.raises(ValueError, match="attaches nothing"):
        Patch("x", Kind.FIX, "t", "o", "u", ())


def test_the_catalog_imports_neither_torch_nor_sglang():
    code = (
        "import sys, gemma4_runtime.selection, gemma4_runtime.targets;"
        "print([m for m in ('torch', 'sglang', 'triton', 'numpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_each_knob_of_the_settings_is_of_one_patch():
    assert sorted(patch.knob for patch in CATALOG if patch.knob) == sorted(KNOBS)


def test_a_knobs_variable_and_field_are_named_by_the_settings_and_the_catalog_alone(repository):
    """A table of knobs beside theirs would have to name them."""
    variables = {variable: ["settings.py"] for knob in KNOBS for variable in knob_variables(knob)}
    once = variables | {"force_eagle": ["fixes.py"], "piecewise_multimodal": ["optimisations.py"]}
    named = {}
    for folder in ("runtime_patches", "triage"):
        for path in (repository / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and node.value in once:
                    named.setdefault(node.value, []).append(path.name)
    assert named == once
