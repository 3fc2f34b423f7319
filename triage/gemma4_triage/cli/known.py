"""`gemma4-triage known`: public issues of SGLang that a log can be matched against."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import names_near
from gemma4_triage.cli import completions
from gemma4_triage.cli.read_logs import read_logs
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import NothingChecked, UsageMistake
from gemma4_triage.input_file import read_input
from gemma4_triage.terminal import MANNER, emit_json, print_plain, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.known_issues.record import KnownIssue

# A thread of SGLang's as findings name it, as GitHub does, or by its address.
_THREAD = re.compile(
    r"(?:https?://(?:www\.)?github\.com/sgl-project/sglang/(?:issues|pull)/|(?:sgl-project/)?sglang ?[#/]? ?|#)?"
    r"(\d{1,6})(?:[/?#]\S*)?",
    re.IGNORECASE,
)


def register(app: typer.Typer) -> None:
    """Add the `known` verbs to the application."""
    verbs = typer.Typer(
        no_args_is_help=True,
        help="Public issues of SGLang, and whether a log is one of them.\n\n"
        "For example: gemma4-triage known check server.log",
    )
    verbs.command("list")(list_known)
    verbs.command("show")(show_known)
    verbs.command("check")(check_known)
    app.add_typer(verbs, name="known")


def list_known(
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            help="Only of this part of the engine, such as lora.",
            autocompletion=completions.words(completions.topics),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the known issues: id, thread, topic, the first release without it, what happens.

    For example: gemma4-triage known list --topic hicache
    """
    from gemma4_triage.report.known_document import list_document
    from gemma4_triage.report.known_view import print_list

    issues = _known()
    topics = sorted({issue.topic for issue in issues})
    if topic is not None and topic not in topics:
        raise UsageMistake(f"there is no topic {topic!r}", names_near(topic, topics))
    chosen = [issue for issue in issues if topic in (None, issue.topic)]
    if as_json:
        emit_json("known-issues", list_document(chosen))
    elif MANNER.quiet:
        print_plain("\n".join(issue.id for issue in chosen))
    else:
        print_list(stdout_console(), chosen)


def show_known(
    issue_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="As `known list` shows it, or a thread: its number, as findings name it, or its address.",
            autocompletion=completions.words(completions.known_issues),
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show one known issue: cause, releases, workaround, signature, threads and a log of it.

    For example: gemma4-triage known show 29616

    Exits 2 for an ID that no record has.
    """
    from gemma4_triage.report.known_document import issue_document
    from gemma4_triage.report.known_view import print_issue

    issue = _named(issue_id)
    if as_json:
        emit_json("known-issue", issue_document(issue))
    else:
        print_issue(stdout_console(), issue)


def check_known(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[LOG]...", help="SGLang's output, plain or packed; - reads stdin.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            "--release",
            help="The release of SGLang, such as 0.5.13.post1. Default: what the log names.",
            autocompletion=completions.words(completions.releases),
        ),
    ] = None,
    server_info: Annotated[
        Path | None, typer.Option("--server-info", metavar="FILE", help="An answer of /server_info: its release.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which known issues logs match; without a log, check every record against its own logs and all others'.

    For example: gemma4-triage known check server.log

    Exits 0 if nothing matches (or every record is right), 1 if something does (or one is wrong), 4 if nothing does in
    what could be read of a torn log, 5 if no line of the logs was understood.
    """
    if not files:
        if release or server_info:
            raise UsageMistake("--release and --server-info are of logs, and none is named", "name a log")
        _check_records(as_json)
    from gemma4_triage.diagnose.unread import refuse_torn
    from gemma4_triage.logs.rules.known_issue import matches_in
    from gemma4_triage.report.known_document import matches_document
    from gemma4_triage.report.known_view import print_matches

    given = _release(release, server_info)
    read = [replace(facts, release=given or facts.release) for facts in read_logs(files or [], verb="known check")]
    refuse_torn(read)
    if not any(facts.understood_lines for facts in read):
        raise NothingChecked("no line of SGLang's in the logs", "give the server's stdout and stderr")
    found = [(facts, facts.release or None, matches_in(facts, _known())) for facts in read]
    if as_json:
        emit_json("known-check", matches_document(found))
    else:
        print_matches(stdout_console(), found)
    concerned = any(match.concerned is not False for _, _, matches in found for match in matches)
    torn = any(facts.problem for facts in read)
    raise typer.Exit(ExitCode.VIOLATION if concerned else ExitCode.DUMP_UNREADABLE if torn else ExitCode.OK)


def _check_records(as_json: bool) -> None:
    from gemma4_triage.report.known_document import check_document
    from gemma4_triage.report.known_matrix import matrix
    from gemma4_triage.report.known_view import print_check

    rows = matrix(_known())
    if as_json:
        emit_json("known-records", check_document(rows))
    else:
        print_check(stdout_console(), rows)
    raise typer.Exit(ExitCode.OK if all(row.good for row in rows) else ExitCode.VIOLATION)


def _known() -> tuple[KnownIssue, ...]:
    from gemma4_triage.known_issues.catalog import known_issues

    return known_issues()


def _named(issue_id: str) -> KnownIssue:
    issues = _known()
    thread = int(match[1]) if (match := _THREAD.fullmatch(issue_id.strip())) else None
    named = (issue for issue in issues if issue_id == issue.id)
    # Of a thread that several records have, the one that it is the first of is the one that findings call so.
    by_first = (issue for issue in issues if thread == issue.threads[0])
    by_any = (issue for issue in issues if thread in issue.threads)
    for issue in (*named, *by_first, *by_any):
        return issue
    hint = names_near(issue_id, (issue.id for issue in issues), "gemma4-triage known list shows all")
    raise UsageMistake(f"there is no known issue {issue_id!r}", hint)


def _release(release: str | None, server_info: Path | None) -> str:
    from gemma4_runtime.releases import is_release
    from gemma4_triage.known_issues.release import release_of_server_info

    if server_info is not None and release is None:
        try:
            release = release_of_server_info(read_input(server_info).decode())
        except (OSError, UnicodeDecodeError) as error:
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise UsageMistake(f"{server_info} cannot be read: {reason}", "save the answer of /server_info") from error
        if not release:
            raise UsageMistake(f"{server_info} names no release", 'an answer of /server_info has a "version"')
    if release is not None and not is_release(release):
        raise UsageMistake(f"{release!r} is no release of SGLang", "such as 0.5.13.post1")
    return release or ""
