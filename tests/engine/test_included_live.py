"""One real dump with KV values and token ids, of the seed bug trapped in the live engine, and its replay."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gemma4_dumps.included import KEYS, PAGE_IDS, TOKEN_IDS, TOKEN_INDPTR, TOKEN_ROWS, VALUES
from gemma4_dumps.reader import read_dump, verify_dump
from gemma4_dumps.store import DumpStore
from gemma4_repro.workloads import SWA_PRESSURE
from gemma4_triage.replay.compare import compare
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.prepare import prepare
from gemma4_triage.replay.rebuild import rebuild
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.tables import AS_DUMPED, INTENDED
from gemma4_triage.replay.values import query_values

pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1", "0.5.23")]

OPTIONS = ReplayOptions()


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    output = tmp_path_factory.mktemp("included") / "run"
    words = ["repro", "e4b-trtllm", "--arm", "fault-probes", "--include-kv", "--include-tokens", "--output", output]
    command = [sys.executable, "-m", "gemma4_triage.cli.app", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DUMPS WILL HOLD KV values and token ids of requests" in (output / "fault-probes" / "log.txt").read_text()
    (entry,) = DumpStore(output / "fault-probes" / "dumps").list()
    return read_dump(entry.path)


def attention(dump, table, row):
    """[q_heads, head_dim] of one decoding row, from the dump's tensors and the seeded query alone, head by head."""
    scalars, length = dump.manifest.scalars, int(dump.tensor("cache_seqlens")[row])
    places = {page: place for place, page in enumerate(dump.tensor(PAGE_IDS).tolist())}
    page_size, begin = dump.manifest.page_size, length - 1 - scalars["window_left"]
    first = begin // page_size
    # Pages that the window has left may have been given back.
    pages = [places[page] for page in table[row, first : -(-length // page_size)].tolist()]
    seen = slice(begin - first * page_size, length - first * page_size)
    keys, values = (np.concatenate(dump.tensor(name)[pages])[seen].astype(np.float64) for name in (KEYS, VALUES))
    query = query_values(0, row, length - 1, (scalars["q_heads"], scalars["head_dim"])).astype(np.float64)
    group = scalars["q_heads"] // scalars["kv_heads"]
    out = np.zeros(query.shape)
    for head in range(scalars["q_heads"]):
        scores = keys[:, head // group] @ query[head] / scalars["head_dim"] ** 0.5
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[:, head // group] / weights.sum()
    return out


@pytest.fixture(scope="module")
def concerned(dump):
    """Return the rows whose requests are: those with an entry beyond the pool, or all where no entry tells them."""
    bad = sorted({one.row for one in dump.manifest.offences})
    return bad if dump.manifest.verdict == "out_of_range" else list(range(len(dump.tensor("request_slots"))))


def test_it_holds_the_pages_and_the_tokens_of_the_requests(dump, concerned):
    manifest = dump.manifest
    assert (manifest.included, manifest.notes, manifest.truncated) == (("kv", "tokens"), (), {})
    assert manifest.launch_args[-2:] == ("--include-kv", "--include-tokens")
    assert manifest.repeat_command.endswith("--arm fault-probes --include-kv --include-tokens")
    assert verify_dump(dump.path).ok
    live = -(-dump.tensor("cache_seqlens") // manifest.page_size)
    # The pages that the rows read, and those that they should have read; no more than the buffer has.
    tables = [dump.tensor(name) for name in ("page_table", "translated_page_table")]
    named = {page for table in tables for row in concerned for page in table[row, : live[row]].tolist()}
    assert set(dump.tensor(PAGE_IDS).tolist()) == named & {*range(1, manifest.extents["pages_swa_pool"])}
    translated = np.concatenate([tables[1][row, : live[row]] for row in concerned])
    right = np.isin(dump.tensor(PAGE_IDS), translated)
    # What a wrong id leads to may never have been written.
    assert np.abs(dump.tensor(KEYS)[right]).reshape(right.sum(), -1).max(axis=1).min() > 0
    assert dump.tensor(TOKEN_ROWS).tolist() == concerned
    ends, tokens, prompts = dump.tensor(TOKEN_INDPTR), dump.tensor(TOKEN_IDS).tolist(), SWA_PRESSURE.prompts()
    for at in range(len(concerned)):
        said = tokens[ends[at] : ends[at + 1]]
        # The target's prefill has given each request its first token.
        assert said[:-1] in prompts


def test_its_replay_reads_the_dumps_values(dump, concerned):
    prepared = prepare(dump, rebuild(dump, OPTIONS), OPTIONS)
    # What lies beyond the pool is in no dump, so rows that lead there are read as they should have been.
    beyond = dump.manifest.verdict == "out_of_range"
    table = dump.tensor("translated_page_table" if beyond else "page_table")
    expected = np.stack([attention(dump, table, row) for row in concerned])
    reference = prepared.reference[INTENDED if beyond else AS_DUMPED]
    np.testing.assert_allclose(reference[concerned], expected, rtol=0, atol=1e-12)
    assert prepared.values_from.startswith("from the dump for ")
    # The null page, which clamp and contain may read, is not in a dump.
    assert beyond or prepared.values_from.startswith(f"from the dump for {prepared.image.inside.shape[0] - 1} pages")
    found = replay(dump, OPTIONS, ["torch"])
    # The pools are aged: other pages are read than should be, and torch reads what the table says.
    assert not found.reads_right
    assert found.backends[0].refusal is None
    (as_dumped,) = [variant for variant in found.backends[0].variants if variant.variant == AS_DUMPED]
    if not beyond:
        assert as_dumped.from_table is not None
        assert as_dumped.from_table.fine


def test_a_wrong_page_shows_in_its_row_alone(dump):
    """Row 3's last page is row 5's in the table: what fp64 makes of it is what the other request's values give."""
    call = rebuild(dump, OPTIONS)
    table = dump.tensor("translated_page_table").copy()
    column = (int(call.key_counts[3]) - 1) // dump.manifest.page_size
    table[3, column] = table[5, column]
    ids = call.ids.copy()
    ids[:, : table.shape[1]] = table[:, : ids.shape[1]]
    prepared = prepare(dump, replace(call, ids=ids), OPTIONS)
    difference = compare(prepared.reference[AS_DUMPED], prepared.reference[INTENDED], call.queries[0], "float64")
    assert difference.bad_rows == (3,)
    assert difference.max_abs > 1e-2
    np.testing.assert_allclose(prepared.reference[AS_DUMPED][3], attention(dump, table, 3), rtol=0, atol=1e-12)
