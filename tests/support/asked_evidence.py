"""What `diagnose` and its readers say of evidence, for tests; and the samples that they are asked about."""

import json

from diagnose_examples import ROOT
from gemma4_triage.readers.catalog import head_of, reader_of
from gemma4_triage.readers.reading import Reading

DUMPS = ROOT / "dumps" / "samples"
EVIDENCE = ROOT / "tests" / "data" / "evidence"
(SNAPSHOT,) = (EVIDENCE / "crash" / "vm").iterdir()
CPU = "20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
"""A dump among DUMPS."""


def readings(*paths) -> list[Reading]:
    """Return what the reader of the first path makes of all of them; none where no reader takes it."""
    reader = reader_of(head_of(paths[0]))
    return [] if reader is None else list(reader.read(paths))


def document(cli, *words) -> tuple[int, dict]:
    """Return the exit code of `diagnose` and its document."""
    code, out, _ = cli("diagnose", *words, "--json")
    return code, json.loads(out)


def rules(cli, *words) -> tuple[int, list[list[str]], dict]:
    """Return the exit code, the rules that each incident's findings have, and the document with what stderr said."""
    code, out, err = cli("diagnose", *words, "--json")
    found = json.loads(out)
    return (
        code,
        [[one["rule"] for one in each["findings"]] for each in found.get("incidents", [])],
        found | {"err": err},
    )


def exported(cli, tmp_path, *dumps):
    """Return the zip of an export of these dumps."""
    path = tmp_path / "sent.zip"
    assert cli("dumps", "export", *dumps, "-o", path, "--force")[0] == 0
    return path
