"""Where evidence comes from: versions, GPU, launch arguments and guards, each said once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.inspection.guard_lines import guard_lines
from gemma4_triage.report.model.limits import pairs_of
from gemma4_triage.report.model.records import Group, Run


def incident_environment(incident: Incident) -> tuple[Group, ...]:
    """Return the environment of the incident's first dump, else of its first guard manifest."""
    groups = []
    if incident.dumps:
        manifest = incident.dumps[0].manifest
        gpu = {f"GPU {name}": value for name, value in (manifest.gpu or {}).items()} or {"GPU": "none"}
        groups.append(_group("versions", {**manifest.versions, **gpu}.items()))
        launch = {"host": manifest.host.hostname, "command": shlex.join(manifest.launch_args)}
        groups.append(_group("process", launch.items()))
    guards = incident.guards[0].fields if incident.guards else None
    if guards:
        lines = [line.partition(":") for line in guard_lines(guards)]
        groups.append(_group("guards", ((name, value.strip()) for name, _, value in lines)))
    return tuple(group for group in groups if group.pairs)


def run_environment(run: Run) -> tuple[Group, ...]:
    """Say what every arm had."""
    groups = [_group("run", [("SGLang", run.sglang_version), ("import", f"{run.import_s:.1f} s")])]
    if run.stand_ins:
        pairs = ((pair.name, pair.value) for pair in run.stand_ins)
        groups.append(_group("host engine: CPU stand-ins for CUDA-only parts", pairs))
    return tuple(groups)


def _group(title: str, pairs: Iterable[tuple[str, object]]) -> Group:
    return Group(title=title, pairs=pairs_of(pairs))
