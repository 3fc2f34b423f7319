"""Numbers of a manifest that its tensors or its own offences contradict: the dump is damaged, though each hash fits."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from gemma4_dumps.reader import read_dump

SAMPLES = Path(__file__).parents[2] / "dumps" / "samples"
ROWS = next((SAMPLES.parents[1] / "tests" / "data" / "mutation_dumps" / "protected-of-another").glob("*request-rows*"))
UNSTORED = next((ROWS.parents[1] / "nothing-stored-by-a-verification").glob("*request-rows*"))
CRASH, STALE, LEAK, SHORT = (
    next(SAMPLES.glob(name)) for name in ("*p24275*", "20261123T173723*", "*_leak-audit_*", "*_batch-shapes_*")
)


@pytest.mark.parametrize(
    ("path", "where", "value", "said"),
    [
        (CRASH, ("extents", "table_columns"), 3, "page_table has 10 columns, the manifest says 3"),
        (CRASH, ("extents", "pages_in_buffer"), 1000, "1000 pages by the extents, and the offence says 65"),
        (CRASH, ("offences", 0, "value"), 66, "page_table[5, 7] is 65, the manifest says 66"),
        (STALE, ("offences", 0, "value"), 1, "slots[0, 1] is 64, the manifest says 1"),
        (LEAK, ("offences", 0, "value"), 1, "suspects[0, 3] is 0, the manifest says 1"),
        (LEAK, ("offences", 0, "request_slot"), 99, "the manifest says 99"),
        (LEAK, ("extents", "pages_full_pool"), 0, "pages_full_pool is 0 by the manifest"),
        (CRASH, ("page_size",), 0, "a page has 0 slots"),
        (CRASH, ("step",), -5, "the step is -5"),
        (CRASH, ("offence_count",), 0, "1 are listed, and 0 counted"),
        (CRASH, ("offences",), [], "0 are listed, and"),
        (LEAK, ("offence_count",), 1000, "and 1000 counted"),
        (ROWS, ("scalars", "value"), -1, "the value is -1 by the scalars"),
        (ROWS, ("scalars", "request_slot"), 99, "the request slot is 99 by the scalars"),
        (ROWS, ("scalars", "token"), 99, "the token is 99 by the scalars"),
        (ROWS, ("scalars", "expected"), 99, "the expected value is 99 by the scalars"),
        (ROWS, ("scalars", "structure"), "positions", "the structure is positions by the scalars"),
        (SHORT, ("offences", 0, "column"), 107, "108 columns by the scalars, and the offence says 107"),
        (SHORT, ("scalars", "overflowing"), 0, "overflowing is 0 by the scalars"),
        (UNSTORED, ("scalars", "tokens_wrong"), 25, "tokens_wrong is 25 by the scalars, of 24 tokens_new"),
        pytest.param(STALE, ("extents", "slots_swa_pool"), 10**330, "a page has", id="a number of 330 digits"),
        (SHORT, ("offences", 0, "value"), 110, "longest row is 109 by the scalars, and 110 by the offences"),
    ],
)
def test_it_is_damage(tmp_path, path, where, value, said):
    assert read_dump(path).damage == ()
    copy = copytree(path, tmp_path / path.name)
    manifest = json.loads((copy / "manifest.json").read_text())
    *outer, last = where
    place = manifest
    for key in outer:
        place = place[key]
    place[last] = value
    (copy / "manifest.json").write_text(json.dumps(manifest))
    # A value may contradict more than one other.
    assert [one for one in read_dump(copy).damage if one.startswith("offences: ") and said in one]
