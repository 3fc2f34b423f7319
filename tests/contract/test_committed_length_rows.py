"""What docs/measure.md says of prompts of every length is what the committed rows hold."""

import json
from pathlib import Path

from gemma4_repro.step_bench.model_sizes import SIZES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "measure.md").read_text()
SAID = " ".join(TEXT.split())
MODELS = ("e2b", "e4b", "26b")
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4000, 8000, 16000)
SHORT = [f"1 x {tokens}/2" for tokens in LENGTHS if tokens <= 1024]


def committed(kind, model):
    return json.loads((ROOT / "docs" / "bench" / f"lengths_{kind}_h200_2026-11-26_{model}.json").read_text())


ALONE = {model: committed("alone", model) for model in ("e2b", "e4b")}
TOGETHER = {model: committed("cut", model) for model in ("e2b", "e4b")}
WHOLE = committed("whole", "26b")
DRAFTED = {model: committed("mtp", model) for model in ("e2b", "e4b")}


def row_of(document, shape, arm="default"):
    return next(row for row in document["rows"] if (row["shape"], row["arm"]) == (shape, arm))


def document_of(model, requests):
    return WHOLE if model == "26b" else (ALONE if requests == 1 else TOGETHER)[model]


def span(rows, value="speedup"):
    medians = sorted(row[value]["median"] for row in rows)
    return f"x{medians[0]:.2f} to x{medians[-1]:.2f}"


def line_of(requests, tokens):
    cells = [f"{requests} x {tokens}"]
    for model in MODELS:
        row = row_of(document_of(model, requests), f"{requests} x {tokens}/2")
        whole = row["speedup"]
        cells += [f"x{whole['median']:.2f} ({whole['low']:.2f} to {whole['high']:.2f})"]
        cells += [f"x{row['ttft_speedup']['median']:.2f}"]
    return f"| {' | '.join(cells)} |"


def test_the_table_has_a_row_for_each_length():
    table = [line for line in TEXT.splitlines() if line.startswith(("| 1 x ", "| 16 x ")) and line.count("|") == 8]
    assert table == [line_of(requests, tokens) for requests in (1, 16) for tokens in LENGTHS]


def test_no_length_is_slower_than_as_shipped_and_short_prompts_are_twice_as_fast():
    for requests in (1, 16):
        for tokens in LENGTHS:
            for model in MODELS:
                assert row_of(document_of(model, requests), f"{requests} x {tokens}/2")["speedup"]["low"] > 1
    for model in ("e2b", "e4b"):
        assert min(row_of(ALONE[model], shape)["ttft_speedup"]["median"] for shape in SHORT) >= 1.9
    lows = {
        (model, shape): row_of(ALONE[model], shape)["ttft_speedup"]["low"]
        for model in ("e2b", "e4b")
        for shape in SHORT
    }
    below = {key for key, low in lows.items() if low < 1.9}
    assert below == {("e2b", "1 x 1024/2")}
    (first,) = (lows[key] for key in below)
    assert f"all intervals but that of 1024 tokens on E2B, which begins at x{first:.2f}." in SAID
    together = [
        row_of(TOGETHER[model], f"16 x {tokens}/2") for model in TOGETHER for tokens in LENGTHS if tokens <= 1024
    ]
    assert f"Of 16 at once it comes {span(together, 'ttft_speedup')} as fast" in SAID


def test_a_part_of_26b_is_told_as_its_rows_have_it():
    part = [row["speedup"] for row in committed("cut", "26b")["rows"] if row["arm"] == "default"]
    assert min(one["median"] for one in part) > 1
    below = sorted(one["low"] for one in part if one["low"] < 1)
    assert f"and {len(below)} of {len(part)} intervals do, of which the lowest begins at x{below[0]:.2f}." in SAID


def test_what_is_said_without_graphs_and_what_the_graphs_take():
    eager = [
        span([row_of(ALONE[model], shape, "without-graphs") for shape in SHORT], "ttft_speedup")
        for model in ("e2b", "e4b")
    ]
    assert f"of one without the graphs {eager[0]} on E2B and {eager[1]} on E4B" in SAID
    servers = [document["servers"][model] for model, document in ALONE.items()]
    held = sorted(
        (arms["default"]["device_memory_bytes"] - arms["without-graphs"]["device_memory_bytes"]) / 2**30
        for arms in servers
    )
    waited = sorted(arms["default"]["start_s"] - arms["without-graphs"]["start_s"] for arms in servers)
    assert f"take {held[0]:.2f} to {held[-1]:.2f} GiB of the GPU and {waited[0]:.0f} to {waited[-1]:.0f} s" in SAID
    shipped, mine = (WHOLE["servers"]["26b"][arm] for arm in ("none", "default"))
    assert shipped["memory_usage"]["kvcache"] == mine["memory_usage"]["kvcache"]
    more = (mine["device_memory_bytes"] - shipped["device_memory_bytes"]) / 2**30
    later = mine["start_s"] - shipped["start_s"]
    assert f"holds {more:.2f} GiB more than one as shipped, and starts {later:.0f} s later" in SAID


def test_what_is_said_with_mtp():
    said = [span([row for row in document["rows"] if row["arm"] == "default"]) for document in (*DRAFTED.values(),)]
    tokens = sorted({shape["prompt_tokens"] for document in DRAFTED.values() for shape in document["shapes"]})
    about = f"With MTP prompts of {tokens[0]} to {tokens[-1]} tokens, alone and 16 at once, are served"
    assert f"{about} {said[1]} as fast on E4B and {said[0]} on E2B" in SAID


def test_documents_are_whole_and_their_prefills_took_the_graphs():
    for document in (*ALONE.values(), *TOGETHER.values(), WHOLE, *DRAFTED.values()):
        (model,) = document["models"]
        assert (document["measurement"], document["wrong"], document["lost"]) == (True, [], {})
        paths = document["servers"][model]["default"]["gemma4_triage_paths"]
        assert paths["piecewise-multimodal"]["fused"] > 0
        assert (paths.get("yoco", {}).get("in piecewise graphs", 0) > 0) is (model != "26b")
    cut_short = [document["partial"] for document in (TOGETHER["e2b"], WHOLE)]
    assert cut_short == ["e2b: time is up in round 7 of 7", "26b: time is up in round 5 of 7"]
    assert WHOLE["models"]["26b"]["num_hidden_layers"] == SIZES["26b"].layers
    assert {row["rounds"] for row in WHOLE["rows"]} == {4, 5}
