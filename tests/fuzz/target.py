"""One input of the fuzzers: a dump of arbitrary bytes, read in every way that the command line reads one."""

import contextlib
import hashlib
import io
import json
import os
import tempfile
from pathlib import Path

from gemma4_dumps.errors import DumpError, ExitCode
from gemma4_dumps.listing import describe, survey
from gemma4_dumps.manifest_file import MANIFEST_NAME, SEAL
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_triage.cli import app
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.finding import Confidence

NAME = "20260101T000000.000000Z_vm_r0_p1_page-table-bounds_0001"
ALLOWED = {ExitCode.OK, ExitCode.VIOLATION, ExitCode.DUMP_UNREADABLE, ExitCode.NOTHING_CHECKED}
SAMPLES = Path(__file__).parents[2] / "dumps" / "samples"
SAMPLE = str(SAMPLES / "20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001")
OUTPUT = "OUTPUT"
_REPORT_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-report-")
REPORTS = {
    option: os.path.join(_REPORT_FOLDER.name, f"report.{end}")
    for option, end in (("--out", "html"), ("--markdown", "md"), ("--junit", "xml"), ("--sarif", "sarif"))
}
COMMANDS = (
    ("replay",),
    ("replay", "--json"),
    ("dumps", "show"),
    ("dumps", "show", "--json"),
    ("dumps", "verify"),
    ("dumps", "verify", "--json"),
    ("audit",),
    ("audit", "--json"),
    ("diagnose",),
    ("diagnose", "--json"),
    ("diff", "dumps", SAMPLE),
    ("diff", "dumps", SAMPLE, "--json"),
    ("replay", "--cap-mib", "16"),
    ("replay", "--cap-mib", "16", "--json"),
    ("replay", "--cap-mib", "16", "--shrink", "--output", OUTPUT),
    ("replay", "--cap-mib", "16", "--shrink", "--renumber", "--output", OUTPUT, "--json"),
    ("report", "--json"),
    ("report", "--force", *(word for option, path in REPORTS.items() for word in (option, path))),
)
# What a replay refuses with exit 3: a size that the dump does hold, or claims of itself. And with exit 2: options of
# attention for a dump that is, or claims to be, of something else.
CAPS = ("too large to replay: ", "the cap is ")
NOT_ATTENTION = ": for dumps of attention, and this is one of "


class Misbehaved(Exception):
    """The command line took an input for a bug of its own."""


class Overconfident(Exception):
    """A cause was called certain, although what it rests on had been changed."""


def lay_out(root: Path, files: dict[str, bytes]) -> Path:
    """Put the files of a dump below `root`, in place of those of the last input."""
    path = root / NAME
    path.mkdir(parents=True, exist_ok=True)
    for left in os.listdir(path):
        os.unlink(path / left)
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def read_all(path: Path) -> str:
    """Read everything. Returns the outcome: "read", or the name of the DumpError. Any other exception is a finding."""
    outcome = "read"
    list(survey(path.parent))
    describe(path.parent, path.name)
    for step in (_verify, _tensors, _events):
        try:
            step(path)
        except DumpError as error:
            outcome = type(error).__name__
    return outcome


def run_command(path: Path, command: tuple[str, ...]) -> str:
    """Run one verb in this process. Returns its exit code's name. Raises Misbehaved for one that is not allowed."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as output:
        words = [output if word == OUTPUT else word for word in command]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = app.main([*words, str(path)])
    capped = code == ExitCode.ENVIRONMENT and command[0] == "replay" and any(cap in err.getvalue() for cap in CAPS)
    other_kind = code == ExitCode.USAGE and command[0] == "replay" and NOT_ATTENTION in err.getvalue()
    if not (code in ALLOWED or capped or other_kind) or "Traceback" in err.getvalue():
        raise Misbehaved(f"{' '.join(command)}: exit {code}: {err.getvalue()[-2000:]}")
    return f"{' '.join(command)}: {ExitCode(code).name}"


def hold_against_certainty(path: Path, seeds: list[dict[str, bytes]]) -> str:
    """Diagnose a dump and return how sure that is.

    What the files are is asked here of the bytes themselves, and not of the reader.

    Args:
        path: Of the dump.
        seeds: The dumps that mutations begin with: what their manifests with a SHA-256 of themselves say is whole.

    Raises:
        Overconfident: a cause is certain, and a file that the manifest vouches for is another, or is not there; or the
            manifest itself is.
    """
    try:
        dump = read_dump(path)
    except DumpError:
        return "certainty: no diagnosis"
    (incident,) = group((dump,))
    findings = conclude(incident)
    sure = [finding for finding in findings if finding.confidence is Confidence.CERTAIN and not finding.is_note]
    changed = _changed_files(path, seeds)
    if changed and sure:
        raise Overconfident(f"{sure[0].rule} is certain, and {', '.join(changed)} is not what the manifest says")
    return f"certainty: {'certain' if sure else 'not certain'} of {'changed' if changed else 'whole'} files"


def _changed_files(path: Path, seeds: list[dict[str, bytes]]) -> list[str]:
    manifest = json.loads((path / MANIFEST_NAME).read_bytes())
    listed = manifest.get("files") or {}
    if SEAL in manifest and all(manifest != json.loads(seed[MANIFEST_NAME]) for seed in seeds):
        return [MANIFEST_NAME]
    return [name for name, record in listed.items() if _sha256(path / name) != record["sha256"]] or (
        [] if listed else ["every file"]
    )


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _verify(path: Path) -> None:
    verify_dump(path)


def _tensors(path: Path) -> None:
    dump = read_dump(path)
    for name in dump.manifest.tensors:
        for read in (dump.tensor, dump.as_float32, dump.strided):
            with contextlib.suppress(DumpError):
                read(name)
        dump.window(name, -3, 10)


def _events(path: Path) -> None:
    for _ in read_dump(path).events():
        pass
