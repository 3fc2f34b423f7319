"""What this machine and this environment can do, found without importing torch or sglang."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from gemma4_dumps.caps import DEFAULT_CAPS
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.manifest_file import MAX_MANIFEST_BYTES
from gemma4_dumps.safe_file import json_files, read_regular
from gemma4_dumps.store import default_root
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.host_environment import missing_from_environment
from gemma4_runtime.patch import Kind, Patch
from gemma4_runtime.releases import HOW_TO_INSTALL, KNOWN, RUNNABLE, installed_or_base
from gemma4_runtime.selection import select
from gemma4_runtime.settings import HostEngine, Settings
from gemma4_runtime.standing import attaches_untested, counts, standing, unknown, way_out
from gemma4_triage.inspection.guard_manifests import faults_of_last, newest_with

OK, NOTE, MISSING = "ok", "note", "missing"
_GPU_QUERY_LIMIT_S = 10


@dataclass(frozen=True)
class Check:
    """One line of the report. `needed`: the environment asks for something that cannot work without it."""

    name: str
    state: str
    detail: str
    needed: bool = False


def survey(settings: Settings) -> list[Check]:
    """Return every check, in the order in which to read them. Raises SettingsError for a patch that does not exist."""
    return list(_checks(settings))


def _checks(settings: Settings) -> Iterator[Check]:
    patches = select(settings, release=installed_or_base())
    yield Check("gemma4-triage", OK, f"{_version('gemma4-triage')}, Python {platform.python_version()}")
    yield _sglang(settings, patches)
    for name in ("torch", "triton", "flashinfer-python", "transformers"):
        found = _version(name)
        yield Check(name, OK if found else NOTE, found or "not installed; reading dumps does not need it")
    yield _plugin(needed=bool(patches))
    yield _gpu()
    yield _host_engine(settings)
    chosen = ", ".join(f"{patch.id} ({patch.kind.value})" for patch in patches)
    yield Check("patches asked for", OK, chosen or "none: SGLang runs as shipped")
    yield Check("probe mode", OK, settings.mode.text)
    if settings.include:
        yield Check("dumps hold", NOTE, f"{settings.include_text} of requests: confidential")
    root = settings.dump_dir or default_root()
    yield _store(root)
    yield _last_guards(root)
    if faults := faults_of_last(root):
        yield _faults_acted(faults)
    if any(patch.kind is Kind.OPTIMISATION for patch in patches) or _last_with_paths(root):
        yield _paths_taken(root)
    if decided := _last_with_decisions(root):
        yield _pools_decided(decided)


def guard_obstacles(settings: Settings) -> list[Check]:
    """Say what would keep a server that wants guards from having them, or from writing down what they find."""
    checks = (_plugin(needed=True), _store(settings.dump_dir or default_root()))
    return [check for check in checks if check.needed and check.state == MISSING]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def patches_here() -> tuple[str, list[dict[str, str]]]:
    """Return the installed release, and what each patch is in it: id, kind, state and why.

    Without an SGLang, or for one that is in no table, there is nothing to list.
    """
    found = _version("sglang") or ""
    rows = [(patch, standing(patch, found)) for patch in CATALOG] if found in KNOWN else []
    return found, [
        {"id": patch.id, "kind": patch.kind.value, "state": one.state.value, "why": one.why} for patch, one in rows
    ]


def _sglang(settings: Settings, patches: Sequence[Patch]) -> Check:
    found, written = _version("sglang"), " and ".join(RUNNABLE)
    if found is None:
        return Check("sglang", MISSING if patches else NOTE, f"not installed: {HOW_TO_INSTALL}", bool(patches))
    if found not in RUNNABLE:
        refused = [one for one in patches if not (settings.allow_untested and attaches_untested(one, found))]
        known = f"{found}; " if found in KNOWN else f"{found}; {unknown(found)}; "
        detail = f"{known}patches are written for {written}; {way_out(found)}"
        return Check("sglang", MISSING if refused else NOTE, detail, bool(refused))
    total = counts(standing(patch, found) for patch in CATALOG)
    states = ", ".join(f"{state} {number}" for state, number in total.items() if number)
    return Check("sglang", OK, f"{found}, supported; patches: {states}")


def _plugin(needed: bool) -> Check:
    names = [entry.name for entry in entry_points(group="sglang.srt.plugins")]
    allowed = os.environ.get("SGLANG_PLUGINS")
    if "gemma4_runtime" not in names:
        return Check("plugin", MISSING, "entry point gemma4_runtime is not registered: reinstall gemma4-triage", needed)
    if allowed and "gemma4_runtime" not in [name.strip() for name in allowed.split(",")]:
        how = f"SGLANG_PLUGINS={allowed!r} keeps SGLang from loading gemma4_runtime: add it there"
        return Check("plugin", MISSING if needed else NOTE, how, needed)
    if _version("sglang") is None:
        return Check("plugin", NOTE, "registered: an SGLang that is installed here will load gemma4_runtime")
    return Check("plugin", OK, "SGLang will load gemma4_runtime")


def _gpu() -> Check:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Check(
            "GPU", NOTE, "no nvidia-smi: dumps can be read, and reproductions run on the CPU if SGLang is there"
        )
    query = [tool, "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader"]
    try:
        out = subprocess.run(query, capture_output=True, text=True, timeout=_GPU_QUERY_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Check("GPU", NOTE, f"nvidia-smi did not answer in {_GPU_QUERY_LIMIT_S} s")
    lines = [line.strip() for line in out.stdout.splitlines() if line.strip()]
    if out.returncode or not lines:
        return Check("GPU", NOTE, f"nvidia-smi reports none (exit {out.returncode})")
    return Check("GPU", OK, "; ".join(lines))


def _host_engine(settings: Settings) -> Check:
    if settings.host_engine is HostEngine.OFF:
        return Check("host engine", OK, "off")
    if missing := missing_from_environment():
        how = f"needs these in the environment before Python starts: {' '.join(missing)}"
        return Check("host engine", MISSING, how, needed=True)
    return Check("host engine", OK, f"{settings.host_engine.value}, device model {settings.device_model.value}")


def _store(root: Path) -> Check:
    nearest = root
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        return Check("dump folder", MISSING, f"{nearest} is not a directory", needed=True)
    if not os.access(nearest, os.W_OK):
        return Check("dump folder", MISSING, f"{root} cannot be written", needed=True)
    free = shutil.disk_usage(nearest).free
    state = OK if free >= DEFAULT_CAPS.bytes_per_dump else NOTE
    return Check("dump folder", state, f"{root}, {free // 2**20} MiB free")


def _last_guards(root: Path) -> Check:
    manifests = json_files(root / "guards")
    if not manifests:
        return Check("last guarded process", NOTE, f"none has written a guard manifest to {root / 'guards'}")
    try:
        last = json.loads(read_regular(manifests[-1], MAX_MANIFEST_BYTES))
        rows = last["patches"]
        absent = [row["id"] for row in rows if not row["attached"]]
        text = f"pid {last['pid']}, {last['created_utc']}, {len(rows) - len(absent)} of {len(rows)} attached"
        text += f" (not {', '.join(absent)})" if absent else ""
        fired = [row["id"] for row in rows if row.get("self_test") == "fired"]
        text += f", self tests fired: {', '.join(fired)}" if fired else ""
    except (DumpUnreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return Check("last guarded process", NOTE, f"{manifests[-1].name} cannot be read: {error}")
    state = OK if last.get("verified") and not absent else NOTE
    return Check("last guarded process", state, text + (", verified" if last.get("verified") else ", NOT verified"))


_OUR_PATHS = {
    "fused": "our kernel",
    "reference": "our kernel's torch reference, on a CPU",
    "batched": "batched",
    "padding left out": "padding left out",
}
"""As the patches record them, and for people. Any other path is SGLang's own, and why."""


def _paths_taken(root: Path) -> Check:
    """Say which path each op took in the last process that ran one: ours, or SGLang's own lines and why."""
    name = "ops of the last server"
    last = _last_with_paths(root)
    if last is None:
        return Check(name, NOTE, "none has run: no forward since a process wrote its guard manifest here")
    rows = [row for row in last["patches"] if row.get("paths")]
    parts = []
    for path, text in _OUR_PATHS.items():
        ids = [row["id"] for row in rows if row["paths"] == [path]]
        parts += [f"{text}: {', '.join(ids)}"] if ids else []
    others = [
        f"{row['id']} ({', '.join(str(_OUR_PATHS.get(path, path)) for path in row['paths'])})"
        for row in rows
        if not _OUR_PATHS.keys() >= set(row["paths"])
    ]
    parts += [f"SGLang's own lines at least once: {', '.join(others)}"] if others else []
    return Check(name, NOTE if others else OK, f"pid {last['pid']}; " + "; ".join(parts))


def _faults_acted(faults: dict[str, bool]) -> Check:
    """Say which faults of the last server have acted: one that never did proves nothing."""
    parts = [f"{fault} has acted" for fault, acted in faults.items() if acted]
    parts += [
        f"{fault} has NEVER ACTED, so nothing follows from how it went" for fault, acted in faults.items() if not acted
    ]
    return Check("faults of the last server", OK if all(faults.values()) else NOTE, "; ".join(parts))


def _pools_decided(manifest: dict) -> Check:
    """Say what a process decided about its KV pools at its start, and why."""
    said = [f"{row['id']}: {row['decision']}" for row in manifest["patches"] if row.get("decision")]
    return Check("KV pools of the last server", OK, f"pid {manifest['pid']}; {'; '.join(said)}")


def _last_with_paths(root: Path) -> dict | None:
    """Return the newest guard manifest whose process ran an op; those that cannot be read are passed over."""
    return newest_with(root, "paths", _names_paths)


def _last_with_decisions(root: Path) -> dict | None:
    """Return the newest guard manifest whose process decided something about its pools."""
    return newest_with(root, "decision", lambda row: isinstance(row["id"], str) and isinstance(row["decision"], str))


def _names_paths(row: dict) -> bool:
    texts = [row["id"], *row["paths"]] if isinstance(row["paths"], list) else [None]
    return all(isinstance(text, str) for text in texts)
