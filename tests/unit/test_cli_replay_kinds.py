"""`gemma4-triage replay` of dumps without an attention call: allocator, leak, shapes and geometry, of real runs."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from dump_examples import flip, renew_hashes
from gemma4_triage.cli import app

CORPUS = Path(__file__).parents[1] / "data" / "corpus_dumps"
CALLS, SHAPES = "replay-allocator", "replay-shapes"


def of_corpus(case, rule):
    (path,) = (CORPUS / case).glob(f"*_{rule}_0001" if rule != "leak-audit" else "*_leak-audit_*")
    return path


@pytest.fixture
def cli(capsys):
    def run(*words):
        code = app.main(["replay", *map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def edited(tmp_path):
    """Return a copy of a dump with another manifest or other events."""

    def edit(path, events=None, **scalars):
        copy = tmp_path / path.name
        copytree(path, copy)
        manifest = json.loads((copy / "manifest.json").read_text())
        manifest["scalars"] |= scalars
        (copy / "manifest.json").write_text(json.dumps(manifest))
        if events is not None:
            (copy / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
            renew_hashes(copy)
        return copy

    return edit


def events_of(path):
    return [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]


STALE, LEAK = (
    of_corpus("stale-mapping", "swa-stale-mapping"),
    of_corpus("deferred-free-after-replacement", "leak-audit"),
)
TOO_SHORT = of_corpus("row-too-short", "batch-shapes")
KINDS = [
    ("stale-mapping", "swa-stale-mapping", CALLS, "STALE MAPPING"),
    ("alloc-on-one-pool", "swa-lost-pages", CALLS, "POOL LEAK"),
    ("free-of-page-zero", "swa-free-range", CALLS, "FREE OUT OF RANGE"),
    ("swa-alloc-oob", "swa-alloc-range", CALLS, "ALLOC OUT OF RANGE"),
    ("deferred-free-after-replacement", "leak-audit", "replay-leak", "POOL LEAK"),
    ("double-bookkeeping", "leak-audit", "replay-leak", "POOL LEAK"),
    ("finish-inside-forward", "leak-audit", "replay-leak", "POOL LEAK"),
    ("page-over-count", "leak-audit", "replay-leak", "NULL PAGE LIVE"),
    ("stale-mapping", "leak-audit", "replay-leak", "STALE MAPPING"),
    ("eager-out-cache-loc", "batch-shapes", SHAPES, "STALE WRITE ROWS"),
    ("row-too-short", "batch-shapes", SHAPES, "ROW OVERFLOW"),
    ("unmergeable-spec-info", "batch-shapes", SHAPES, "UNUSABLE SPEC INFO"),
    ("draft-pool-too-small", "geometry", SHAPES, "POOL TOO SMALL"),
    ("hybrid-pool-unswapped", "geometry", SHAPES, "GEOMETRY MISMATCH"),
    ("swa-state-stale", "geometry", SHAPES, "SWA STATE"),
    ("window-one-too-wide", "geometry", SHAPES, "WINDOW WIDTH"),
]


@pytest.mark.parametrize(("case", "rule", "kind", "title"), KINDS, ids=[f"{case}-{rule}" for case, rule, *_ in KINDS])
def test_every_real_dump_is_replayed_to_its_own_verdict(cli, case, rule, kind, title):
    path = of_corpus(case, rule)
    code, out, err = cli(path)
    assert (code, err) == (1, "")
    assert out.startswith(f"{title}  {path.name}")
    code, out, err = cli(path, "--json")
    document = json.loads(out)
    assert (code, err, document["kind"], document["fine"]) == (1, "", kind, False)
    assert document.get("agreement", "agrees") == "agrees"


class TestCalls:
    @pytest.mark.parametrize(
        ("case", "rule", "first", "pages"),
        [
            ("stale-mapping", "swa-stale-mapping", 22, [("swa", 4)]),
            ("alloc-on-one-pool", "swa-lost-pages", 5, [("full", 9), ("full", 10)]),
            ("free-of-page-zero", "swa-free-range", 10, [("full", 0)]),
            ("swa-alloc-oob", "swa-alloc-range", 9, [("swa", 65)]),
        ],
    )
    def test_the_first_call_that_fails_and_its_pages(self, cli, case, rule, first, pages):
        document = json.loads(cli(of_corpus(case, rule), "--json")[1])
        assert (document["first"], document["later"], document["start_known"]) == (first, 0, True)
        assert [(change["pool"], change["page"]) for change in document["changes"]][: len(pages)] == pages
        (broken,) = document["calls"][first - document["calls"][0]["number"]]["broken"]
        assert broken["invariant"] == document["verdict"]

    def test_the_table_ends_at_the_failing_call(self, cli):
        _, out, _ = cli(STALE, "--rows", "3")
        assert "calls (3 of 23)" in out
        (row,) = [line for line in out.splitlines() if line.startswith("> ")]
        assert row.split()[1:6] == ["22", "free_swa", "19", "evict_swa", "full"]
        assert "what fails first, after call 22" in out
        assert "in use for full page 4  free" in out

    def test_1_where_the_dumps_lists_are_not_what_the_calls_leave(self, cli, edited):
        code, out, _ = cli(edited(STALE, events_of(STALE)[:-1]))
        assert code == 1
        assert "by the dump's list 51 swa pages are free and by the calls 50" in out
        assert "the dump's own verdict: disagrees" in out

    def test_1_where_every_invariant_holds_and_the_dump_says_otherwise(self, cli, edited):
        events = events_of(STALE)
        events[-1]["left"] = [[], []]
        code, out, _ = cli(edited(STALE, events))
        assert (code, out.startswith("EVERY INVARIANT HOLDS")) == (1, True)
        assert "the dump's own verdict: disagrees" in out

    def test_4_for_a_call_that_contradicts_itself(self, cli, edited):
        events = events_of(STALE)
        events[3]["swa"] = [[16, 2]]
        code, out, err = cli(edited(STALE, events))
        assert (code, out) == (4, "")
        assert "call 3 contradicts itself" in err
        assert len(err.splitlines()) <= 2

    @pytest.mark.parametrize("scalars", [{"need_sort": "yes"}, {"first_call": 99}])
    def test_4_for_a_beginning_that_no_allocator_has(self, cli, edited, scalars):
        code, out, err = cli(edited(STALE, **scalars))
        assert (code, out) == (4, "")
        assert "contradicts itself" in err

    def test_5_for_a_dump_of_before(self, cli, edited):
        code, out, err = cli(edited(STALE, []))
        assert (code, out) == (5, "")
        assert "holds no calls to replay" in err


class TestLeaks:
    def test_the_release_that_forgot_the_other_pool(self, cli):
        document = json.loads(cli(LEAK, "--json")[1])
        (page,) = document["pages"]
        assert (page["pool"], page["page"], page["break_line"], page["break_step"]) == ("swa", 11, 17, 9)
        assert "gave back full page 11, which goes with it, at step 9 without it" in page["text"]
        assert document["because"].endswith("hold 16 tokens, which is what its equation lacks")

    def test_pages_that_nobody_gave_back_are_ordered_by_when(self, cli):
        pages = json.loads(cli(of_corpus("finish-inside-forward", "leak-audit"), "--json")[1])["pages"]
        steps = [page["break_step"] for page in pages if page["break_step"] is not None]
        assert steps == sorted(steps)
        assert all("no release follows" in page["text"] for page in pages if page["fault"] == "nowhere")

    def test_what_events_do_not_name_is_not_said(self, cli, edited):
        document = json.loads(cli(edited(LEAK, []), "--json")[1])
        (page,) = document["pages"]
        assert (page["break_line"], page["break_step"]) == (None, 8)
        assert "handed it out at step 8; no release follows" in page["text"]

    @pytest.mark.parametrize(
        "change",
        [{"kind": "lost"}, {"step": 1.5}, {"step": 10**30}, {"pages": -1}, {"first_pages": [1] * 50}, {"pool": None}],
    )
    def test_4_for_an_event_that_is_none(self, cli, edited, change):
        events = events_of(LEAK)
        events[2] |= change
        code, out, err = cli(edited(LEAK, events))
        # What no event can have is named as damage first.
        said = [line for line in out.splitlines() if not line.startswith("damaged: ")]
        assert (code, said) == (4, [])
        assert "events.jsonl line 3" in err


class TestShapes:
    def test_a_row_that_is_too_short(self, cli):
        _, out, _ = cli(TOO_SHORT)
        assert "slots of the longest              109    at most 108" in out
        assert "request slot 1: 109 slots - 108 columns = 1 too many" in out

    def test_1_where_the_numbers_fit_and_the_dump_says_that_they_do_not(self, cli, edited):
        path = edited(of_corpus("draft-pool-too-small", "geometry"), found=2560)
        code, out, _ = cli(path)
        assert code == 1
        assert out.startswith("EVERY SHAPE IS AS IT SHOULD BE")
        assert "the dump's own verdict: disagrees" in out

    def test_4_where_the_dump_contradicts_itself(self, cli, edited):
        code, _, err = cli(edited(TOO_SHORT, longest=120))
        assert code == 4
        assert "contradicts itself" in err

    def test_5_without_the_numbers(self, cli, edited):
        code, _, err = cli(edited(TOO_SHORT, width="x"))
        assert code == 5
        assert "does not say 'width'" in err


@pytest.mark.parametrize("path", [STALE, LEAK, TOO_SHORT], ids=["calls", "leak", "shapes"])
@pytest.mark.parametrize(
    "words", [("--backend", "torch"), ("--heads", "8:2"), ("--shrink",), ("--window", "-1"), ("--cap-mib", "256")]
)
def test_2_for_an_option_of_attention(cli, path, words):
    code, out, err = cli(path, *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {words[0]}: for dumps of attention, and this is one of ")


class TestDamage:
    @pytest.fixture
    def flipped(self, tmp_path):
        def flip_of(path, name, at=-1):
            copy = copytree(path, tmp_path / path.name)
            flip(copy / name, at)
            return copy

        return flip_of

    @pytest.mark.parametrize(
        ("path", "name"), [(STALE, "tensors.safetensors"), (STALE, "events.jsonl"), (LEAK, "events.jsonl")]
    )
    def test_it_is_said_first(self, cli, flipped, path, name):
        code, out, _ = cli(flipped(path, name))
        assert code == 4
        assert out.startswith(f"damaged: {path.name}: {name}: SHA-256 ")

    def test_the_rest_is_still_replayed(self, cli, flipped):
        copy = flipped(LEAK, "tensors.safetensors", at=-8)
        code, out, err = cli(copy)
        assert (code, err, out.splitlines()[1][:9]) == (4, "", "POOL LEAK")
        code, out, err = cli(copy, "--json")
        assert (code, [one["dump_id"] for one in json.loads(out)["damaged"]]) == (4, [LEAK.name])
        assert err.startswith("damaged: ")


def test_text_from_a_dump_cannot_command_the_terminal(cli, edited):
    events = events_of(STALE)
    events[3]["site"] = "\x1b[2Jverify"
    assert "\x1b" not in cli(edited(STALE, events))[1]


def test_a_mapping_that_nobody_looked_at_is_not_judged(cli, edited):
    events = [{name: value for name, value in event.items() if name != "left"} for event in events_of(STALE)]
    code, out, _ = cli(edited(STALE, events), "--json")
    assert (code, json.loads(out)["agreement"]) == (5, "cannot be judged")


def test_calls_that_are_missing_though_none_was_dropped_are_a_contradiction(cli, edited):
    events = [event | {"number": event["number"] + 5} for event in events_of(STALE)]
    code, _, err = cli(edited(STALE, events))
    assert code == 4
    assert "calls 0 to 4 are missing, and 0 were dropped" in err


def test_a_pool_that_counts_more_than_it_has_is_said_to(cli):
    code, out, _ = cli(of_corpus("page-over-count", "leak-audit"), "--json")
    assert (code, json.loads(out)["because"]) == (1, "the swa pool's parts count 16 tokens more than the pool has")
