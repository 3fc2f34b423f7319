"""What the README says of the probes' cost is what the committed rows hold, and the picture is drawn from them."""

import json
from pathlib import Path

import pytest

from gemma4_triage.report.bench_plot import draw

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text().split())
DOCUMENTS = [json.loads(path.read_text()) for path in sorted((ROOT / "docs" / "bench").glob("probes_h200_*.json"))]


def rows(arm, mtp):
    return [row for document in DOCUMENTS for row in document["rows"] if (row["arm"], row["mtp"]) == (arm, mtp)]


def percent(row):
    return f"{100 * row['probes_share']:.1f}%"


@pytest.mark.parametrize("arm", ["contain", "ledger"])
def test_shares_with_mtp(arm):
    shares = sorted(rows(arm, True), key=lambda row: row["probes_share"])
    assert f"{percent(shares[0])} to {percent(shares[-1])}" in README


def test_without_mtp():
    contain, ledger = (sorted(rows(arm, False), key=lambda row: row["probes_share"]) for arm in ("contain", "ledger"))
    assert f"{percent(contain[0])} to {percent(contain[-1])} and {percent(ledger[0])}" in README
    spent = [[round(row["probes_us"]["median"]) for row in (found[0], found[-1])] for found in (contain, ledger)]
    assert f"({spent[0][0]} to {spent[0][1]}, and {spent[1][0]} to {spent[1][1]})" in README
    assert f"{percent(ledger[0])} to {percent(ledger[-1])}: both targets are missed there" in README


def test_off_is_identity():
    (proof,) = [t["proof"] for d in DOCUMENTS for t in d["targets"] if t["target"] == "identity"]
    assert f"{proof['compared']} of SGLang's functions compared, none changed" in README
    assert proof["changed"] == []


def test_the_picture_is_drawn_from_the_rows():
    """If this fails: gemma4-triage bench plot docs/bench/probes_h200_*.json --out docs/probes_h200.svg --force"""
    assert (ROOT / "docs" / "probes_h200.svg").read_text() == draw(DOCUMENTS)
