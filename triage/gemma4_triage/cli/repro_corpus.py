"""`gemma4-triage repro corpus`: inject every known fault, and print which probe saw which, with the right cause."""

from typing import TYPE_CHECKING

from gemma4_triage.cli.output import emit_json, say, stdout_console

if TYPE_CHECKING:
    from gemma4_repro.detection.runner import CorpusRun, Options

NAME = "corpus"


def list_cases(as_json: bool) -> None:
    """`repro corpus --list`."""
    from gemma4_repro.detection.catalog import CLEAN, FAULTS, LOGIT_FAULTS
    from gemma4_triage.report.corpus_document import case_list
    from gemma4_triage.report.corpus_view import print_cases

    if as_json:
        emit_json("corpus-list", case_list(FAULTS, CLEAN, LOGIT_FAULTS))
    else:
        print_cases(stdout_console(), FAULTS, CLEAN, LOGIT_FAULTS)
        say("gemma4-triage repro corpus runs all of them; --only ID[,ID] some")


def run_and_report(options: "Options", as_json: bool) -> int:
    """Run the corpus, write verdict.json, show the matrix. Returns the exit code. Raises ReproError."""
    import json

    from gemma4_repro.run_folder import VERDICT_NAME, writing
    from gemma4_triage.cli.output import JSON_SCHEMA_VERSION
    from gemma4_triage.report.corpus_document import corpus_document
    from gemma4_triage.report.corpus_view import print_matrix

    run = _run(options)
    document = corpus_document(run)
    path = run.folder / VERDICT_NAME
    with writing(path):
        path.write_text(json.dumps({"schema_version": JSON_SCHEMA_VERSION, "kind": NAME} | document, indent=2))
    if as_json:
        emit_json(NAME, document)
    else:
        print_matrix(stdout_console(), run)
    say(f"Wrote {path}")
    return run.matrix.exit_code


def _run(options: "Options") -> "CorpusRun":
    from gemma4_repro.detection.runner import run_corpus
    from gemma4_triage.report.corpus_progress import CorpusProgress

    with CorpusProgress() as progress:
        return run_corpus(options, progress)
