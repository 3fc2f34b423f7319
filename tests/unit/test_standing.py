"""What a patch is in a release, and what becomes of those that the release has itself."""

import json
from dataclasses import replace

import pytest

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.errors import SettingsError
from gemma4_runtime.patch import Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE, KNOWN, RUNNABLE, order
from gemma4_runtime.selection import not_ported, select
from gemma4_runtime.settings import HostEngine, Settings
from gemma4_runtime.standing import State, refusal, releases_of, standing
from gemma4_triage.cli import app

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ONE = Patch("one", Kind.FIX, "t", "o", "u", (Hook("mtp.verify", How.AFTER, "m:f"),))


def test_releases_sort_by_age():
    names = ["0.6.0", "0.5.23", "0.5.14", "0.5.13.post1", "0.5.13", "0.5.9"]
    assert sorted(names, key=order, reverse=True) == names
    assert sorted(names, key=order) == names[::-1]


@pytest.mark.parametrize("patch", CATALOG, ids=lambda patch: patch.id)
def test_a_patch_attaches_to_releases_that_a_server_may_run_on_and_says_why_not_to_others(patch):
    assert set(releases_of(patch)) <= set(RUNNABLE)
    assert (BASE in releases_of(patch)) == (patch.since == BASE)
    for release in set(KNOWN) - set(releases_of(patch)):
        assert standing(patch, release).why
        assert f"patch {patch.id} " in refusal(patch, release)


def test_a_release_between_two_that_a_patch_is_for_is_not_one_of_them():
    patch = replace(ONE, until="0.5.23")
    assert releases_of(patch) == [BASE, "0.5.23"]
    assert standing(patch, "0.5.17").state is State.NOT_PORTED
    assert standing(patch, "0.5.20").state is State.NOT_PORTED


def test_what_is_named_is_refused_and_what_a_default_brings_is_left_out_and_listed_where_it_is_not_ported():
    settings = Settings.model_construct(patches=("default", "+yoco"))
    assert "yoco" in {patch.id for patch in select(settings, release="0.5.23")}
    assert "vision-batching" not in {patch.id for patch in select(settings, release="0.5.23")}
    left = {patch.id for patch in not_ported(settings, "0.5.23")}
    assert "vision-batching" in left
    assert "yoco" not in left
    assert not_ported(settings, BASE) == ()
    assert not_ported(settings, "9.9.9") == ()
    assert "yoco" in {patch.id for patch in select(settings, release="9.9.9")}


def test_a_leaf_of_a_later_release_is_not_chosen_for_an_earlier_one():
    settings = Settings.model_construct(host_engine=HostEngine.ON)
    leaves = {release: {patch.id for patch in select(settings, release=release)} for release in RUNNABLE}
    assert "host-counter-buffer" in leaves["0.5.23"] - leaves[BASE]
    assert "host-draft-tree" in leaves[BASE] - leaves["0.5.23"]


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
    assert document["supported"] is True


def test_a_release_that_nobody_knows_is_a_usage_error(capsys):
    assert app.main(["patches", "list", "--sglang", "0.5.20"]) == 2
    said = capsys.readouterr().err
    assert all(release in said for release in KNOWN)
