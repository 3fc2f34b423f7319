"""What a patch is in a release, and what becomes of those that the release has itself."""

import json
from dataclasses import replace

import pytest

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.patch import Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE, KNOWN, order
from gemma4_runtime.selection import select
from gemma4_runtime.settings import Settings
from gemma4_runtime.standing import State, refusal, releases_of, standing
from gemma4_triage.cli import app

ONE = Patch("one", Kind.FIX, "t", "o", "u", (Hook("mtp.verify", How.AFTER, "m:f"),))


def test_releases_sort_by_age():
    names = ["0.6.0", "0.5.23", "0.5.14", "0.5.13.post1", "0.5.13", "0.5.9"]
    assert sorted(names, key=order, reverse=True) == names
    assert sorted(names, key=order) == names[::-1]


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_every_patch_attaches_to_the_base_and_to_nothing_else_yet(patch):
    assert releases_of(patch) == [BASE]
    for release in KNOWN[1:]:
        assert standing(patch, release).why
        assert f"patch {patch.id} " in refusal(patch, release)


def test_it_is_absorbed_from_its_release_on():
    patch = replace(ONE, absorbed="0.5.18 or earlier, a/b.py")
    assert standing(patch, "0.5.17").state is State.NOT_PORTED
    assert standing(patch, "0.5.18").state is State.ABSORBED
    assert "which has it: 0.5.18 or earlier, a/b.py" in refusal(patch, "0.5.23")


def test_a_reason_holds_from_its_release_on_and_missing_targets_are_named():
    patch = replace(ONE, not_ported="0.5.21, the layer is another")
    assert standing(patch, "0.5.17").why == "SGLang 0.5.17 has no mtp.verify"
    assert standing(patch, "0.5.23").why == "the layer is another; SGLang 0.5.23 has no mtp.verify"
    assert standing(patch, "0.5.23").missing == ("mtp.verify",)


def test_an_unknown_release_attaches_nothing():
    assert "not known" in refusal(ONE, "9.9.9")


def chosen(release, **settings):
    return {patch.id for patch in select(Settings.model_construct(**settings), release=release)}


def test_a_default_leaves_out_what_is_absorbed_in_silence():
    assert {"eager-out-cache-loc", "swa-state-swap"} <= chosen(BASE, patches=("default",))
    left = chosen("0.5.23", patches=("default", "-eager-out-cache-loc"))
    assert "eager-out-cache-loc" not in left
    assert "swa-state-swap" in left


@pytest.mark.parametrize("item", ["swa-window-width", "+swa-window-width"])
def test_naming_what_is_absorbed_says_where_it_is(item):
    assert "swa-window-width" in chosen(BASE, patches=(item,))
    with pytest.raises(SettingsError, match=r"swa-window-width, which SGLang 0\.5\.23 has.*0\.5\.14, models/gemma4"):
        chosen("0.5.23", patches=(item,))


def test_the_list_of_a_release_is_made_from_data(capsys):
    assert app.main(["patches", "list", "--sglang", "0.5.23", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["id"] for row in document["patches"]} == {patch.id for patch in CATALOG}
    assert sum(document["counts"].values()) == len(CATALOG)
    assert document["supported"] is False


def test_a_release_that_nobody_knows_is_a_usage_error(capsys):
    assert app.main(["patches", "list", "--sglang", "0.5.20"]) == 2
    said = capsys.readouterr().err
    assert all(release in said for release in KNOWN)
