"""The geometry rules on plain records: equal sides are silent, and any one difference is found and named."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_dumps.schema import VERDICTS
from gemma4_runtime.checks.geometry import (
    NO_WINDOW,
    Layer,
    Node,
    Pool,
    Severity,
    Shared,
    SubPool,
    SwaRoom,
    check_bindings,
    check_handed_out,
    check_kv_scales,
    check_layers,
    check_nodes,
    check_scales,
    check_shared,
    check_sources,
    check_swa_room,
    check_windows,
)

W = 32
SLIDING = Layer(1, "sliding", kv_heads=2, k_dim=16, v_dim=16, window_left=W - 1, config_window=W)
FULL = Layer(2, "full", kv_heads=1, k_dim=32, v_dim=32, window_left=NO_WINDOW, config_window=W)
TARGET_POOL = Pool(
    "SWAKVPool@1",
    {"sliding": SubPool(1024, 2, 16, 16), "full": SubPool(2560, 1, 32, 32)},
    {0: "sliding", 1: "sliding", 2: "full"},
)
DUMMY = Pool("MHATokenToKVPool@2", {"all": SubPool(64, 2, 16, 16)}, {0: "all", 1: "all"})
HANDED_OUT = {"full": 2560, "sliding": 1024}
ROOM = SwaRoom(swa_slots=1024, full_slots=2560, page_size=16, window=W - 1, chunk=512, longest_input=4096)

shared = st.builds(
    Shared,
    allocator=st.sampled_from(["A@1", "A@2"]),
    request_table=st.sampled_from(["R@1", "R@2"]),
    page_size=st.sampled_from([1, 16, 64]),
    context_length=st.integers(1, 9),
    kv_dtype=st.sampled_from(["torch.bfloat16", "torch.float8_e4m3fn"]),
    sliding_window=st.integers(-1, 3),
)


@given(shared)
def test_equal_sides_are_silent(side):
    assert list(check_shared(side, replace(side), True)) == []


@given(shared, shared)
def test_exactly_the_fields_that_differ_are_named(target, draft):
    differing = {f.name for f in fields(Shared) if getattr(target, f.name) != getattr(draft, f.name)}
    found = list(check_shared(target, draft, True))
    assert {finding.what for finding in found} == differing
    assert len(found) == len(differing)
    for finding in found:
        assert (finding.verdict, finding.severity) == ("geometry_mismatch", Severity.FATAL)
        assert finding.found == getattr(draft, finding.what)
        assert finding.expected.startswith(str(getattr(target, finding.what)))
        assert finding.why


@given(shared, shared)
def test_a_draft_with_kv_of_its_own_shares_slots_rows_and_pages_only(target, draft):
    found = {finding.what for finding in check_shared(target, draft, False)}
    assert found == {
        name for name in ("allocator", "request_table", "page_size") if getattr(target, name) != getattr(draft, name)
    }


def test_layers_that_fit_are_silent():
    assert list(check_layers("target", [SLIDING, FULL], TARGET_POOL)) == []


@pytest.mark.parametrize("name", ["kv_heads", "k_dim", "v_dim"])
@pytest.mark.parametrize("layer", [SLIDING, FULL], ids=lambda layer: layer.type)
def test_any_one_dimension_of_a_layer_is_named(layer, name):
    wrong = replace(layer, **{name: getattr(layer, name) + 1})
    (found,) = check_layers("draft", [wrong], TARGET_POOL)
    assert (found.verdict, found.what, found.found) == ("geometry_mismatch", name, getattr(wrong, name))
    assert found.expected.startswith(f"{getattr(layer, name)}, as ")
    assert found.layers == (layer.layer_id,)


def test_a_layer_id_that_the_pool_does_not_have():
    (found,) = check_layers("draft", [replace(SLIDING, layer_id=7)], TARGET_POOL)
    assert (found.what, found.found, found.expected) == ("layer_id", 7, "one of [0, 1, 2]")


def test_a_sliding_layer_bound_to_a_full_layers_id():
    found = list(check_layers("draft", [replace(FULL, layer_id=1, kv_heads=2, k_dim=16, v_dim=16)], TARGET_POOL))
    assert [(f.what, f.found, f.expected) for f in found] == [("sub_pool", "sliding", "full")]


def test_a_pool_of_an_unknown_kind_is_not_judged():
    assert list(check_layers("target", [SLIDING], Pool("MLATokenToKVPool@3", DUMMY.parts, None))) == []


def test_alike_differences_of_several_layers_are_one_finding():
    (found,) = check_layers("draft", [replace(SLIDING, layer_id=n, kv_heads=4) for n in (1, 0, 1)], TARGET_POOL)
    assert found.layers == (0, 1)


class TestWindows:
    def test_what_the_configuration_says_is_silent(self):
        assert list(check_windows("target", [SLIDING, FULL])) == []

    def test_one_key_more_as_shipped_is_advice(self):
        (found,) = check_windows("target", [replace(SLIDING, window_left=W, layer_id=n) for n in (0, 1)])
        assert (found.verdict, found.severity, found.layers) == ("window_width", Severity.ADVICE, (0, 1))
        assert (found.found, found.expected) == (W, str(W - 1))
        assert f"{W + 1} here, {W} in the model" in found.why

    @given(st.integers(-1, 2 * W))
    def test_every_other_width_is_fatal_and_said(self, window_left):
        found = list(check_windows("draft", [replace(SLIDING, window_left=window_left)]))
        severities = [] if window_left == W - 1 else [Severity.ADVICE if window_left == W else Severity.FATAL]
        assert [finding.severity for finding in found] == severities

    def test_a_window_on_a_full_layer_is_fatal_at_any_width(self):
        for window_left in (0, 1, W):
            (found,) = check_windows("draft", [replace(FULL, window_left=window_left)])
            assert (found.severity, found.expected) == (Severity.FATAL, "-1")

    def test_one_key_more_in_some_layers_is_no_property_of_the_release(self):
        wider = replace(SLIDING, window_left=W)
        for layers, beside in (([SLIDING, wider], []), ([wider], [SLIDING]), ([wider, SLIDING], [wider])):
            (found,) = check_windows("draft", layers, beside)
            assert (found.severity, found.found) == (Severity.FATAL, W)
            assert found.expected == f"{W - 1}, as the other layers have it"
        (found,) = check_windows("draft", [wider], [wider, FULL])
        assert found.severity is Severity.ADVICE

    def test_a_model_whose_convention_is_unknown_is_not_judged(self):
        assert list(check_windows("target", [replace(SLIDING, window_left=5, config_window=None)])) == []


OWNERS = {"sliding": SLIDING, "full": FULL}


class TestBindings:
    def test_what_the_configurations_say_is_silent(self):
        assert list(check_bindings([SLIDING, SLIDING, FULL], OWNERS)) == []
        assert list(check_bindings([replace(SLIDING, layer_id=9)], {})) == [], "nothing is known of the target"

    def test_another_layer_of_the_right_type_is_fatal(self):
        other = replace(SLIDING, layer_id=0)
        (found,) = check_bindings([other, SLIDING, other, FULL], OWNERS)
        assert (found.severity, found.what, found.found, found.layers) == (Severity.FATAL, "bound_layer", 0, (0,))
        assert found.expected == "1, whose KV the target's last sliding layer reads"
        assert "2 sliding layers of the draft" in found.why

    def test_other_scales_of_keys_and_values_are_advice(self):
        (found,) = check_bindings([SLIDING, FULL], OWNERS | {"full": replace(FULL, kv_scales=(0.5, 2.0))})
        assert (found.severity, found.what, found.layers) == (Severity.ADVICE, "kv_scales", (2,))
        assert (found.found, found.expected) == ("1 and 1", "0.5 and 2, as the target writes them")

    def test_another_scale_of_scores_is_fatal_and_one_that_is_not_known_is_not_judged(self):
        known = replace(SLIDING, config_scaling=1.0)
        assert list(check_scales("target", [known, replace(SLIDING, scaling=0.3)])) == []
        (found,) = check_scales("draft", [known, replace(known, scaling=0.25, layer_id=0)])
        assert (found.severity, found.what, found.layers) == (Severity.FATAL, "scaling", (0,))
        assert (found.found, found.expected) == ("0.25", "1")


class TestTarget:
    """What is the target's own: how many slots its allocator has, and by what its layers multiply what they read."""

    def test_as_many_slots_as_there_are_buffers_for_are_silent(self):
        assert list(check_handed_out(TARGET_POOL, {"full": (2560, 2560), "sliding": (1024, 1024)}, 16)) == []
        assert list(check_handed_out(DUMMY, {"full": (64,)}, 16)) == []
        assert list(check_handed_out(TARGET_POOL, {}, 16)) == [], "an allocator of another kind is not judged"

    @pytest.mark.parametrize(("slots", "severity"), [(2576, Severity.FATAL), (2544, Severity.ADVICE)])
    def test_a_page_too_many_leads_beyond_the_buffers_and_one_too_few_is_never_used(self, slots, severity):
        (found,) = check_handed_out(TARGET_POOL, {"full": (2560, slots, slots), "sliding": (1024,)}, 16)
        assert (found.verdict, found.severity) == ("geometry_mismatch", severity)
        assert found.summary == (
            f"target allocator_slots_full: found {slots}, expected 2560, in pages of 16, as SWAKVPool@1 has buffers for"
        )

    def test_scales_of_layers_whose_pool_divides_by_none_are_advice(self):
        layers = [SLIDING, replace(FULL, kv_scales=(1.0, 2.0))]
        (found,) = check_kv_scales("target", layers, "torch.bfloat16")
        assert (found.severity, found.what, found.found, found.layers) == (
            Severity.ADVICE,
            "kv_scales",
            "1 and 2",
            (2,),
        )
        assert list(check_kv_scales("target", layers, "torch.float8_e4m3fn")) == []
        assert list(check_kv_scales("target", [SLIDING, FULL], "torch.float32")) == []


class TestNodes:
    def node(self, path="HybridAttnBackend.decode_backend", pool=TARGET_POOL, site="view", swa_state="SWAKVPool@1"):
        return Node(site, path, pool, swa_state)

    def test_all_on_the_pool_meant_is_silent(self):
        nodes = [self.node("HybridAttnBackend", swa_state=None), self.node(), self.node(site="other")]
        assert list(check_nodes(nodes, TARGET_POOL, [SLIDING, FULL], HANDED_OUT)) == []

    def test_a_child_left_behind_is_one_finding_with_both_pools_and_all_places(self):
        nodes = [self.node("HybridAttnBackend", swa_state=None)]
        nodes += [self.node(f"H.{c}_backend", DUMMY, site) for site in ("a", "b") for c in ("prefill", "decode")]
        (found,) = check_nodes(nodes, TARGET_POOL, [SLIDING, FULL], HANDED_OUT)
        assert (found.verdict, found.severity, found.what) == ("geometry_mismatch", Severity.FATAL, "pool")
        assert found.found == "MHATokenToKVPool@2 (64 slots) on H.prefill_backend, H.decode_backend inside a, b"
        assert found.expected == "SWAKVPool@1 (1024 + 2560 slots)"

    @pytest.mark.parametrize("state", ["", "SWAKVPool@9"])
    def test_stale_swa_state_is_advice(self, state):
        (found,) = check_nodes([self.node(swa_state=state)], TARGET_POOL, [SLIDING, FULL], HANDED_OUT)
        assert (found.verdict, found.severity, found.expected) == ("swa_state", Severity.ADVICE, "SWAKVPool@1")

    def test_swa_state_on_a_plain_pool_is_advice_too(self):
        (found,) = check_nodes([self.node(pool=DUMMY)], DUMMY, [replace(SLIDING, layer_id=0)], {"full": 64})
        assert (found.verdict, found.expected) == ("swa_state", "none")

    @given(st.integers(0, 200))
    def test_fewer_slots_than_the_allocator_hands_out(self, handed_out):
        nodes = [self.node(pool=DUMMY, swa_state=None)]
        found = list(check_nodes(nodes, DUMMY, [], {"full": handed_out}))
        assert [(f.verdict, f.found) for f in found] == ([("pool_too_small", 64)] if handed_out > 64 else [])

    @pytest.mark.parametrize("part", ["full", "sliding"])
    def test_either_part_of_an_swa_pool_may_be_the_smaller_one(self, part):
        (found,) = check_nodes([self.node()], TARGET_POOL, [], HANDED_OUT | {part: HANDED_OUT[part] + 16})
        assert (found.what, found.found) == (f"slots_{part}", HANDED_OUT[part])
        assert found.expected.startswith(f"at least {HANDED_OUT[part] + 16},")


def test_a_layer_that_reads_another_than_its_configuration_says():
    own, shared = replace(SLIDING, config_source=1), replace(SLIDING, config_source=1)
    assert list(check_sources("target", [own, shared, FULL])) == []
    wrong = replace(shared, layer_id=0)
    (found,) = check_sources("target", [own, wrong, wrong])
    assert (found.what, found.found, found.severity) == ("bound_layer", 0, Severity.FATAL)
    assert found.expected == "1, as the model's configuration says"
    assert found.why == "2 sliding layers read another layer's keys and values"


class TestRoom:
    def test_room_for_everything_is_silent(self):
        assert list(check_swa_room(ROOM)) == []

    def test_no_room_for_any_request_is_fatal_with_both_sides(self):
        (found,) = check_swa_room(replace(ROOM, swa_slots=W - 1 + 16))
        assert (found.verdict, found.severity, found.found) == ("pool_too_small", Severity.FATAL, 47)
        assert found.expected == "more than 47 = window 31 + page 16"

    def test_no_room_for_the_longest_request_is_a_note(self):
        (found,) = check_swa_room(replace(ROOM, chunk=None))
        assert (found.severity, found.found) == (Severity.NOTE, 1024)
        assert found.expected.startswith("more than 4112 = ")

    def test_more_sliding_than_full_slots_is_a_note(self):
        (found,) = check_swa_room(replace(ROOM, full_slots=512))
        assert (found.severity, found.what) == (Severity.NOTE, "swa_ratio")
        assert list(check_swa_room(replace(ROOM, full_slots=0))) == [], "a model of sliding layers only"

    @given(
        st.integers(1, 300),
        st.integers(1, 64),
        st.integers(1, 100),
        st.none() | st.integers(1, 300),
        st.integers(1, 400),
    )
    def test_what_is_said_is_what_sglangs_admission_does(self, slots, page, window, chunk, longest):
        """`PrefillAdder` on an empty pool: a request is refused while max(step, window) + page >= free slots."""

        def admitted(length):
            step = length if chunk is None else min(length, chunk)
            return max(step, window) + page < slots

        room = SwaRoom(slots, 10_000, page, window, chunk, longest)
        severities = [finding.severity for finding in check_swa_room(room)]
        if not admitted(1):
            assert severities == [Severity.FATAL]
        else:
            assert severities == ([] if admitted(longest) else [Severity.NOTE])


def test_every_verdict_of_the_table_is_a_known_one():
    from gemma4_runtime.checks import geometry

    rows = [line for line in geometry.__doc__.splitlines() if line.startswith("|") and "---" not in line]
    assert {row.split("|")[2].strip() for row in rows} - {"verdict"} <= set(VERDICTS)
