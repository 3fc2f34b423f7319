"""Times on the command line, and the names that options had before."""

import pytest

from gemma4_triage.cli.durations import parse_age, time_from
from gemma4_triage.cli.option_names import in_todays_words
from gemma4_triage.errors import UsageMistake


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), (300.0, 300), ("1d", 86400)],
)
def test_a_limit_is_seconds_or_has_a_unit(text, seconds):
    assert time_from(1)(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5 m", "-5", "5x", "nan", "inf", "1e3", "0.5", "61m"])
def test_what_is_no_limit_is_told_what_is(text):
    with pytest.raises(UsageMistake, match="cannot be read") as error:
        time_from(1, 3600)(text)
    assert error.value.hint.endswith("from 1s to 1h")


def test_an_age_needs_its_unit():
    assert parse_age("2w").days == 14
    with pytest.raises(UsageMistake, match="is not an age"):
        parse_age("90")


def test_minutes_of_before_are_times_of_today():
    assert in_todays_words(["bench", "step", "--max-minutes", "5"]) == ["bench", "step", "--timeout", "5m"]
    assert in_todays_words(["bench", "--max-minutes=2.5", "-o", "x"]) == ["bench", "--timeout=2.5m", "-o", "x"]
    assert in_todays_words(["serve", "--", "--max-minutes", "5"]) == ["serve", "--", "--max-minutes", "5"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("repro", "e4b-trtllm", "--timeout", "5m", "--arm", "x"), "no arm 'x'"),
        (("repro", "e4b-trtllm", "--time-limit", "300", "--arm", "x"), "no arm 'x'"),
        (("diff", "backends", "--timeout", "0"), "--timeout '0' cannot be read"),
        (("bench", "kernels", "--max-minutes", "0.5"), "--max-minutes '0.5' cannot be read; it is called --timeout"),
        (("repro", "corpus", "--max-minutes", "3x"), "--max-minutes '3x' cannot be read; it is called --timeout today"),
        (("repro", "corpus", "--time-limit=5x"), "--time-limit '5x' cannot be read; it is called --timeout today"),
        (("quality", "--start-timeout", "2d"), "--start-timeout '2d' cannot be read"),
        (("diff", "backends", "nope"), "nope"),
        (("diff", "backends", "--scenario", "nope"), "nope"),
    ],
)
def test_every_verb_takes_units_and_old_names(cli, words, said):
    code, _, err = cli(*words)
    assert (code, said in err) == (2, True), err


def test_a_replay_and_a_prune_take_old_names_and_new(cli, tmp_path):
    sample = "dumps/samples/20261121T103430.648335Z_vm_r0_p24275_page-table-bounds_0001"
    for option in ("--timeout", "--timeout-s"):
        assert cli("replay", sample, option, "120")[0] == 1
    for option in ("--keep", "--keep-newest"):
        _, _, err = cli("dumps", "prune", "--dir", "dumps/samples", option, "3", "--dry-run")
        assert err.startswith("Would remove 2 dumps")
    assert "--keep " not in cli("dumps", "prune", "--help")[1]
