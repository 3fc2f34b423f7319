"""`bench plot` of rows of `bench serving`, as a user runs it: committed rows, and what such a file may hold instead."""

import json
import math
from xml.etree import ElementTree

import pytest

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def rows(repository):
    """Return a function of a load to the document of one committed run, to be changed."""

    def read(load):
        return json.loads(min((repository / "docs" / "bench").glob(f"serving_{load}_*.json")).read_text())

    return read


@pytest.fixture
def draw(cli, tmp_path):
    """Return a function of a document, ... to (exit code, stderr, the picture or None)."""

    def run(*documents):
        paths = [tmp_path / f"{number}.json" for number, _ in enumerate(documents)]
        for path, document in zip(paths, documents, strict=True):
            path.write_text(json.dumps(document))
        out = tmp_path / "x.svg"
        code, _, err = cli("bench", "plot", *paths, "--out", out)
        return code, err, out.read_text() if out.exists() else None

    return run


def texts(picture):
    return [element.text for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def dots(picture):
    """Return cx of each arm's dot, from the top."""
    return [float(element.get("cx")) for element in ElementTree.fromstring(picture).iter(f"{SVG}circle")]


def test_a_panel_per_shape_and_a_line_per_arm(draw, rows):
    document = rows("mtp")
    code, err, picture = draw(document)
    assert (code, "Wrote" in err) == (0, True)
    said = texts(picture)
    panels = [f"e2b, {shape['id']}" for shape in document["shapes"]]
    assert [one for one in said if one in panels] == panels
    assert [one for one in said if one in document["arms"]] == [row["arm"] for row in document["rows"]]
    assert sum("accepts" in one for one in said) == sum(row["accepted"] is not None for row in document["rows"])
    assert "href" not in picture
    assert "url(" not in picture


def test_a_dot_lies_where_its_ratio_is(draw, rows):
    document = rows("mtp")
    _, _, picture = draw(document)
    ratios = [row["speedup"]["median"] for row in document["rows"]]
    found = dots(picture)
    pixels_per_fold = {
        round((x - found[0]) / math.log(ratio)) for x, ratio in zip(found, ratios, strict=True) if abs(ratio - 1) > 0.2
    }
    assert max(pixels_per_fold) - min(pixels_per_fold) <= 1, "logarithmic, and none at the reference's x1"


def test_everything_lies_within_the_picture(draw, rows):
    _, _, picture = draw(rows("mtp"))
    root = ElementTree.fromstring(picture)
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        for name, most in (("x1", width), ("x2", width), ("cx", width), ("y1", height), ("y2", height), ("y", height)):
            assert 0 <= float(element.get(name, 0)) <= most


def test_models_of_one_load_are_one_picture(draw, rows):
    one, other = rows("prefill_e2b"), rows("prefill_e4b")
    code, err, picture = draw(one, other)
    assert code == 0, err
    assert {text for text in texts(picture) if text.endswith("16 x 7000/10")} == {
        "e2b, 16 x 7000/10",
        "e4b, 16 x 7000/10",
    }


def test_loads_are_not_mixed(draw, rows):
    code, err, picture = draw(rows("mtp"), rows("prefill_e2b"))
    assert (code, picture) == (2, None)
    assert "of different benches or loads" in err


def test_a_trial_on_a_cpu_is_refused(draw, rows):
    code, err, picture = draw(rows("mtp") | {"measurement": False})
    assert (code, picture) == (2, None)
    assert "no measurement" in err


def test_an_arm_that_was_not_compared_is_named_without_a_dot(draw, rows):
    document = rows("mtp")
    everywhere = [row["arm"] for row in document["rows"]]
    document["rows"][3]["speedup"] = None
    # Of one round there is no interval.
    document["rows"][4]["speedup"] |= {"low": None, "high": None}
    code, _, picture = draw(document)
    assert code == 0
    assert [one for one in texts(picture) if one in everywhere] == everywhere
    assert len(dots(picture)) == len(everywhere) - 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"speedup": None}, "no arm was compared"),
        ({"speedup": {"median": -1.0, "low": None, "high": None}}, "is no time or ratio"),
        ({"speedup": {"median": float("nan"), "low": None, "high": None}}, "is no time or ratio"),
        ({"speedup": {"median": float("inf"), "low": None, "high": None}}, "is no time or ratio"),
        ({"speedup": {"median": 1.5, "low": 2.0, "high": 1.0}}, "outside its interval"),
        ({"wall_s": {"median": float("nan")}}, "is no time or ratio"),
        ({"wall_s": {"median": -1.0}}, "is no time or ratio"),
        ({"ttft_ms": {"median": float("inf")}}, "is no time or ratio"),
        ({"accepted": float("nan")}, "is no time or ratio"),
        ({"shape": "alike"}, "stands twice"),
        ({"wall_s": None}, "rows are not as bench serving writes them"),
        ({"arm": 7}, "rows are not as bench serving writes them"),
    ],
)
def test_rows_that_are_not_as_they_are_written(draw, rows, change, said):
    document = rows("mtp")
    for row in document["rows"]:
        row |= change
    code, err, picture = draw(document)
    assert (code, picture) == (2, None)
    assert said in err


def test_words_of_a_file_are_only_words(draw, rows):
    document = rows("mtp")
    document["title"] = "<script>x</script>"
    for row in document["rows"]:
        row["shape"] = "<b>&\x0b\x07\ud800" + row["shape"]
    code, _, picture = draw(document)
    assert code == 0
    assert "<script" not in picture
    assert "<b>" not in picture
    assert any("200/128" in text for text in texts(picture))


def test_a_file_is_drawn_once(draw, rows):
    code, err, picture = draw(rows("mtp"), rows("mtp"))
    assert (code, picture) == (2, None)
    assert "stands twice" in err
