"""A dump of an exception, put as the lines that a server writes of it: rules over logs know what such lines tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Finding

_OF_POOLS = re.compile(r" (Try to allocate |Available )")


def told_by_rules_over_logs(dump: Dump, incident: Incident) -> Finding | None:
    """Return what the rules over logs make of the exception; None if nothing, or if a log of it is there as well.

    Args:
        dump: One of `process-end`, of an exception.
        incident: What it belongs to; the finding about its log, if it has one, says the same.
    """
    said = str(dump.manifest.scalars.get("message") or "")
    if not said or any(said.startswith(death.message[:40]) for facts in incident.logs for death in facts.deaths):
        return None
    # They are many modules, loaded where they are asked.
    from gemma4_triage.logs.catalog import SAYING_LITTLE, findings
    from gemma4_triage.logs.read import read_log

    facts = read_log(dump.manifest.dump_id, [lines_of(dump).encode()])
    facts = replace(facts, release=facts.release or dump.manifest.versions.get("sglang", ""))
    return next((one for one in findings(facts) if one.rule not in SAYING_LITTLE), None)


def lines_of(dump: Dump) -> str:
    """Return command, traceback and message as a log has them. Lines of source are not in a dump."""
    scalars, launched = dump.manifest.scalars, dump.manifest.launch_args
    lines = [shlex.join(("python", "-m", *launched))] if len(launched) > 1 else []
    if dump.manifest.page_size:
        lines.append(f"server_args=ServerArgs(page_size={dump.manifest.page_size})")
    lines += ["Scheduler hit an exception: Traceback (most recent call last):", *_frames(str(scalars.get("traceback")))]
    # The probe puts a message on one line, and rules know SGLang's account of its pools by lines.
    message = _OF_POOLS.sub(r"\n\1", str(scalars.get("message")))
    return "\n".join([*lines, f"{scalars.get('exception')}: {message}", ""])


def _frames(traceback: str) -> Iterator[str]:
    """Yield a frame's line for each `module.function:line`, whose module ends at a class or at the last dot."""
    for frame in traceback.split(" > "):
        name, _, line = frame.rpartition(":")
        parts = name.split(".")
        inner = parts.index("<locals>") - 1 if "<locals>" in parts else len(parts) - 1
        of_class = next((at for at, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), inner)
        module = "/".join(parts[: min(of_class, inner)])
        if module and line.isdecimal():
            yield f'  File "/site-packages/{module}.py", line {line}, in {parts[-1]}'
