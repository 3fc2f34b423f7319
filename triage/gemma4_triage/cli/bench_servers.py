"""A bench that starts servers: its run folder, what is asked of the installation beside it, and nothing measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemma4_triage.errors import EnvironmentCannot
from gemma4_triage.terminal import say

Document = Callable[[Any, dict[str, Any], dict[str, str | None], Path], dict[str, Any]]
"""(what was measured, the installation, the project, the run's folder) to the document."""


def measure_with_servers(
    name: str,
    run_folder: Path | None,
    host_engine: bool,
    run: Callable[[Path], Any],
    document_of: Document,
) -> tuple[dict[str, Any], bool]:
    """Return the document, and whether a user ended it. run: in this folder, to bursts, lost and partial.

    Raises:
        UsageMistake: the run folder cannot be had.
        KeyboardInterrupt: before anything was measured.
        EnvironmentCannot: nothing was.
    """
    from gemma4_repro.bench.ask_installation import InstallationQuestion
    from gemma4_repro.engine.readiness import check_sglang
    from gemma4_repro.engine.run_folder import prepare_run_folder
    from gemma4_repro.errors import OutputRefused
    from gemma4_triage.report.bench_origin import project_origin

    check_sglang()
    # Now, and not when it has ended: by then the checkout may be at another commit.
    project = project_origin()
    try:
        folder = prepare_run_folder(name, (), run_folder, False)
    except OutputRefused as error:
        error.hint = "name another --run-folder"
        raise
    say(f"run folder: {folder}")
    with InstallationQuestion(folder, host_engine) as question:
        measured = run(folder)
        if measured.interrupted and not measured.bursts:
            raise KeyboardInterrupt
        installation = question.answer()
    if installation["failure"]:
        say(f"GPU and versions are not known: {installation['failure']} ({folder / 'installation.log'})")
    document = document_of(measured, installation, project, folder)
    if not document["rows"]:
        reasons = [why for lost in measured.lost.values() for why in lost.values()]
        why = "\n".join(reasons) or measured.partial
        raise EnvironmentCannot(f"nothing was measured\n{why}", f"the servers' logs are below {folder}")
    return document, measured.interrupted
