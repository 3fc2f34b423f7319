"""What a reply is taken for, what pairs of answers come to, and what exit code."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4_repro.errors import UnknownName
from gemma4_repro.quality import colours
from gemma4_repro.quality.ask import MMLU, Answer, Asked, Item, api_root
from gemma4_repro.quality.judge import judge
from gemma4_repro.quality.mmlu import read_letter
from gemma4_repro.quality.paired import Pairs, beats_guessing, interval, mcnemar_p
from gemma4_repro.quality.run import Measured


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        (" B", "B"),
        ("B\n\nQuestion: ...", "B"),
        ("(C) because", "C"),
        ("**D.** four", "D"),
        ("Answer: A", "A"),
        ("The correct answer is **B**.", "B"),
        ("the answer is C", "C"),
        ("A", "A"),
        ("A.", "A"),
        ("A A. dal", "A"),
        ("B because", "B"),
        ("A good answer is B", None),
        ("Because", None),
        ("Bees", None),
        ("B-cells are", None),
        ("b", None),
        ("E", None),
        ("", None),
        ("I think it is B", None),
        ("I'd say A", None),
        ("A's", None),
    ],
)
def test_a_letter_is_what_a_reply_begins_with(reply, letter):
    assert read_letter(reply) == letter


@given(st.text(max_size=40))
def test_any_reply_gives_a_letter_or_none(reply):
    assert read_letter(reply) in (*"ABCD", None)
    assert colours.read_colour(reply) in (*colours.SYNONYMS, None)


@pytest.mark.parametrize(
    ("reply", "colour"),
    [
        ("Red", "red"),
        ("It is a dark BLUE.", "blue"),
        ("navy blue", "blue"),
        ("violet", "purple"),
        ("gray", "grey"),
        ("red or orange", None),
        ("bored", None),
        ("", None),
    ],
)
def test_a_colour_is_the_only_one_that_a_reply_names(reply, colour):
    assert colours.read_colour(reply) == colour


def test_there_are_thirty_images_all_different():
    prompts = colours.prompts()
    assert len({id for id, _, _ in prompts}) == len({url for _, url, _ in prompts}) == 30
    assert prompts == colours.prompts()
    # No synonym belongs to two colours.
    words = [word for colour, others in colours.SYNONYMS.items() for word in (colour, *others)]
    assert len(words) == len(set(words))


COUNTS = st.one_of(st.sampled_from([0, 1, 2]), st.integers(0, 300))
PAIRS = st.builds(Pairs, COUNTS, COUNTS, COUNTS, COUNTS).filter(lambda pairs: pairs.count > 0)


class TestTheInterval:
    def test_a_published_example(self):
        # Fagerland, Lydersen, Laake: Statistics in Medicine 33 (2014), 2850-2875, table of airway hyper-responsiveness.
        assert [round(end, 3) for end in interval(Pairs(1, 7, 1, 12))] == [-0.517, -0.026]

    def test_it_has_a_width_where_nothing_differs(self):
        low, high = interval(Pairs(30, 0, 0, 0))
        assert (round(low, 4), round(high, 4)) == (-0.1135, 0.1135)
        assert interval(Pairs(0, 0, 0, 30)) == pytest.approx((low, high))
        # As docs/quality.md has it of 500 questions.
        assert round(100 * interval(Pairs(500, 0, 0, 0))[1], 1) == 0.8

    @given(PAIRS)
    def test_it_holds_what_was_observed_and_does_not_depend_on_who_is_base(self, pairs):
        low, high = interval(pairs)
        assert -1 <= low <= pairs.difference + 1e-9
        assert pairs.difference - 1e-9 <= high <= 1
        turned = interval(Pairs(pairs.both, pairs.only_with, pairs.only_base, pairs.neither))
        assert turned == pytest.approx((-high, -low), abs=1e-9)

    @given(PAIRS)
    def test_it_leaves_zero_out_where_the_score_test_rejects_it(self, pairs):
        lost, gained = pairs.only_base, pairs.only_with
        rejected = lost + gained > 0 and (lost - gained) ** 2 > 1.959963984540054**2 * (lost + gained)
        low, high = interval(pairs)
        assert (high < 0 or low > 0) == rejected

    @pytest.mark.parametrize("count", [10, 30])
    @pytest.mark.parametrize("chances", [(0.02, 0.02), (0.1, 0.1), (0.3, 0.3), (0.15, 0.05)])
    def test_it_covers_the_truth_as_often_as_it_says(self, count, chances):
        """Every outcome by its probability. chances: of a loss and of a gain."""
        lose, gain = chances
        covered = false_alarm = 0.0
        for lost in range(count + 1):
            for gained in range(count + 1 - lost):
                rest = count - lost - gained
                ways = comb(count, lost) * comb(count - lost, gained)
                chance = ways * lose**lost * gain**gained * (1 - lose - gain) ** rest
                if chance < 1e-7:
                    continue
                low, high = interval(Pairs(0, lost, gained, rest))
                covered += chance * (low <= gain - lose <= high)
                false_alarm += chance * (high < gain - lose)
        assert covered > 0.94
        assert false_alarm < 0.03

    def test_p_is_a_coins(self):
        assert mcnemar_p(Pairs(5, 0, 0, 5)) == 1
        assert mcnemar_p(Pairs(90, 6, 0, 4)) == pytest.approx(2 / 2**6)
        assert mcnemar_p(Pairs(90, 5, 1, 4)) == pytest.approx(2 * (1 + 6) / 2**6)

    def test_guessing(self):
        assert not beats_guessing(0, 0, 0.25)
        assert not beats_guessing(2, 2, 0.25)
        assert beats_guessing(3, 3, 0.25)
        assert not beats_guessing(130, 500, 0.25)


def measured(base, with_, **more):
    """Make a run of letters replied to questions whose answer is A; "!" is a failed request, "?" an unread reply."""
    sides = {}
    for name, letters in (("base", base), ("with", with_)):
        answers = [
            Answer(str(number), MMLU, "A", error="refused")
            if letter == "!"
            else Answer(str(number), MMLU, "A", reply=letter, read=None if letter == "?" else letter)
            for number, letter in enumerate(letters)
        ]
        sides[name] = Asked("toy", answers)
    return Measured(sides, **more)


def verdict(base, with_, chosen=None, **more):
    items = [Item(str(number), MMLU, "A", "completions", {}) for number in range(max(len(base), len(with_)))]
    return judge(items, measured(base, with_, **more), chosen or {})


class TestTheVerdict:
    def test_equal_answers_are_no_worse(self):
        found = verdict("A" * 20, "A" * 20)
        assert (found.exit_code, found.parts[0].verdict, found.reasons) == (0, "no worse", [])

    def test_a_few_lost_are_within_the_interval(self):
        found = verdict("A" * 20, "A" * 17 + "BBB")
        assert (found.exit_code, found.parts[0].verdict) == (0, "no worse")
        assert found.parts[0].lost_items == ["17", "18", "19"]

    def test_many_lost_are_worse(self):
        found = verdict("A" * 20, "A" * 10 + "B" * 10)
        assert (found.exit_code, found.parts[0].verdict) == (1, "worse")
        assert found.reasons == ["mmlu: with is worse than base, beyond the interval"]

    def test_many_gained_are_better_even_where_base_only_guessed(self):
        found = verdict("A" * 5 + "B" * 15, "A" * 20)
        assert (found.exit_code, found.parts[0].verdict) == (0, "better")

    def test_a_base_that_guesses_can_lose_nothing(self):
        found = verdict("ABCD" * 5, "ABCD" * 5)
        assert (found.exit_code, found.parts[0].verdict) == (5, "not judged")
        assert "no more than guessing gives (25%)" in found.reasons[0]

    def test_unreadable_replies_are_wrong_and_counted(self):
        found = verdict("A" * 20, "?" * 20).parts[0]
        assert (found.verdict, found.with_.unreadable, found.with_.right) == ("worse", 20, 0)

    def test_failed_requests_are_not_scored(self):
        found = verdict("!" + "A" * 19, "A" * 20)
        assert (found.exit_code, found.parts[0].compared, found.parts[0].base.failed) == (0, 19, 1)

    def test_requests_that_only_with_failed_are_a_violation(self):
        found = verdict("A" * 20, "A" * 19 + "!")
        assert (found.exit_code, found.reasons) == (1, ["with failed 1 request that base answered"])

    def test_nothing_answered_is_nothing_checked(self):
        found = verdict("!" * 20, "!" * 20)
        assert (found.exit_code, found.parts[0].difference, found.parts[0].mcnemar_p) == (5, None, None)

    @pytest.mark.parametrize("side", ["base", "with"])
    def test_a_server_that_ended_is_a_violation(self, side):
        run = measured("A" * 20, "A" * 20)
        run.asked[side].answers = run.asked[side].answers[:12]
        run.asked[side].ended = "the server is gone"
        items = [Item(str(number), MMLU, "A", "completions", {}) for number in range(20)]
        found = judge(items, run, {})
        assert (found.exit_code, found.reasons) == (1, [f"{side}: the server is gone"])
        assert found.parts[0].compared == 12

    def test_patches_that_never_worked_leave_nothing_checked(self):
        # rmsnorm-add counts its path "fused".
        chosen = {"base": (), "with": ("rmsnorm-add",)}
        idle: dict = {"paths": {"with": {"rmsnorm-add": {"fused": 0}}}, "paths_at_start": {"with": {}}}
        assert verdict("A" * 20, "A" * 20, chosen, **idle).exit_code == 5
        idle["paths_at_start"]["with"] = {"rmsnorm-add": {"fused": 2}}
        found = verdict("A" * 20, "A" * 20, chosen, **idle)
        assert (found.exit_code, found.patches[0].times, found.patches[0].times_at_start) == (0, 0, 2)
        assert verdict("A" * 20, "A" * 20, chosen).patches[0].times is None

    def test_an_interrupt_keeps_what_was_answered(self):
        found = verdict("A" * 20, "", interrupted=True)
        assert (found.exit_code, found.reasons[0], found.parts[0].base.right) == (130, "interrupted", 20)


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_with_and_without_v1(url):
    assert api_root(url) == "http://h:1/v1"


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:x", "http://[::1", "http://h:0"])
def test_what_is_no_address(url):
    with pytest.raises(UnknownName, match="is no address of a server"):
        api_root(url)
