"""The fix unsent-requests: whose entries go, and whose stay."""

import asyncio
from types import SimpleNamespace

import pytest

from gemma4_runtime.fixes.unsent_requests import around_generate, forget_unsent


def entry(obj, sent: bool):
    return SimpleNamespace(obj=obj, time_stats=SimpleNamespace(api_server_dispatch_time=1.0 if sent else 0.0))


def manager(**states):
    return SimpleNamespace(rid_to_state=states)


def test_what_was_sent_stays_for_its_answer():
    one = SimpleNamespace(rid="a")
    states = {"a": entry(one, sent=True)}
    forget_unsent(states, one)
    assert list(states) == ["a"]


def test_what_was_not_sent_goes():
    one = SimpleNamespace(rid="a")
    states = {"a": entry(one, sent=False), "b": entry(SimpleNamespace(rid="b"), sent=False)}
    forget_unsent(states, one)
    assert list(states) == ["b"]


def test_ids_of_parallel_answers_go_and_those_of_others_stay():
    parts = {0: SimpleNamespace(), 1: SimpleNamespace()}
    one = SimpleNamespace(rid=["a", "b", "c"], _sub_obj_cache=parts)
    states = {"a": entry(parts[0], True), "b": entry(parts[1], False), "c": entry(SimpleNamespace(), False)}
    forget_unsent(states, one)
    assert list(states) == ["a", "c"]


@pytest.mark.parametrize("ending", ["answered", "refused", "given up"])
def test_however_a_request_ends(ending):
    one = SimpleNamespace(rid="a")
    of = manager()
    closed = []

    async def generate(tokenizer, obj, request=None):
        tokenizer.rid_to_state["a"] = entry(obj, sent=False)
        try:
            yield 1
            if ending == "refused":
                raise ValueError("too long")
            yield 2
        finally:
            closed.append(True)

    async def consume():
        replies = around_generate(generate, of, one, request="r")
        assert await anext(replies) == 1
        if ending == "given up":
            await replies.aclose()
        elif ending == "refused":
            with pytest.raises(ValueError, match="too long"):
                await anext(replies)
        else:
            assert [reply async for reply in replies] == [2]

    asyncio.run(consume())
    assert (of.rid_to_state, closed) == ({}, [True])
