"""`gemma4-triage repro corpus`: inject every known fault, and print which probe saw which, with the right cause."""

from typing import TYPE_CHECKING

from gemma4_triage.cli.finished_run import finish
from gemma4_triage.terminal import MANNER, emit_json, print_plain, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.corpus.runner import CorpusRun, Options

NAME = "corpus"


def list_cases(as_json: bool) -> None:
    """Print what `repro corpus --list` shows."""
    from gemma4_repro.corpus.clean import CLEAN
    from gemma4_repro.corpus.faults import FAULTS, LOGIT_FAULTS
    from gemma4_runtime.releases import installed_or_base
    from gemma4_triage.runs.convert_corpus import case_list
    from gemma4_triage.runs.corpus_view import print_cases

    cases = case_list(FAULTS, CLEAN, LOGIT_FAULTS, installed_or_base())
    if as_json:
        emit_json("corpus-list", cases.model_dump(mode="json"))
    elif MANNER.quiet:
        print_plain("\n".join(case.id for case in (*FAULTS, *CLEAN) if case.id not in cases.absent))
    else:
        print_cases(stdout_console(), cases)
        say(
            "gemma4-triage repro corpus runs all that the release can have; --only IDS some; -v here shows each with "
            "its issue and probes"
        )


def run_and_report(options: "Options", as_json: bool) -> int:
    """Run the corpus, write verdict.json, show the matrix. Returns the exit code. Raises ReproError."""
    from gemma4_triage.runs.convert_corpus import record_of_corpus

    run = _run(options)
    return finish(record_of_corpus(run), run.folder, as_json)


def _run(options: "Options") -> "CorpusRun":
    from gemma4_repro.corpus.runner import run_corpus
    from gemma4_triage.runs.progress import CorpusProgress

    with CorpusProgress() as progress:
        return run_corpus(options, progress)
