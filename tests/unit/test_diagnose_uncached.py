"""What is taken for granted of an audit of a server with a prefix cache is not, of one without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from diagnose_examples import altered, changed, mutation, of
from gemma4_dumps.audit_findings import Suspect
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.census import Listed
from gemma4_triage.diagnose.rules import holder_entry_wrong, pages_leaked

CACHES = [pytest.param(True, id="cache"), pytest.param(None, id="silent"), pytest.param(False, id="no cache")]


def with_cache(dump: Dump, cached: bool | None) -> Dump:
    """Return the dump of a server with a prefix cache, or without, or that does not say."""
    return altered(dump, scalars=dump.manifest.scalars | {"caches_prefixes": cached})


@pytest.mark.parametrize("cached", CACHES)
def test_prompts_that_an_ended_request_left_are_the_caches_loss_where_there_is_one(cached: bool | None) -> None:
    (dump,) = mutation("node-lost").dumps
    finding = pages_leaked.find(of(with_cache(dump, cached)))
    assert finding is not None
    of_cache = cached is not False
    assert finding.structure is (Structure.TREE_NODE if of_cache else Structure.FREE_CALL)
    assert finding.defect is Defect.LOST
    assert ("it is the cache that has lost them" in finding.cause) is of_cache
    assert ("ended without giving them back" in finding.cause) is not of_cache


@pytest.mark.parametrize("cached", CACHES)
def test_of_two_that_have_a_page_the_one_that_the_lost_prompt_page_stayed_with_is_wrong(
    cached: bool | None, tmp_path: Path
) -> None:
    """A running request and, where there is one, the cache: it would have a prompt's page, or its row before it."""
    dumps = []
    for number, dump in enumerate(mutation("row-of-a-request").dumps):
        table = dump.tensor("suspects").copy()
        # Handed out by alloc_for_extend, whose number the other dumps of a prompt have.
        table[:, 6] = _site_of_prompts()
        dumps.append(with_cache(changed(tmp_path / str(number), dump, suspects=table), cached))
    finding = holder_entry_wrong.find(of(*dumps))
    assert finding is not None
    assert finding.structure is (Structure.REQUEST_ROW if cached is False else None)


def _site_of_prompts() -> int:
    (dump,) = mutation("node-lost").dumps
    return int(np.unique(dump.tensor("suspects")[:, 6]).item())


@pytest.mark.parametrize(
    ("freed", "given", "last_event", "was_freed"),
    [
        (None, 3, "handed_out", False),
        (4, 3, "freed", True),
        (3, 4, "handed_out", False),
        (3, None, "freed", True),
        # In one step the last event is the later one.
        (3, 3, "freed", True),
        (3, 3, "handed_out", False),
        (3, 3, "owned", False),
        (3, 3, "given", False),
    ],
)
def test_a_page_handed_out_in_the_step_of_its_free_was_not_given_back_since(
    freed: int | None, given: int | None, last_event: str, was_freed: bool
) -> None:
    page = Suspect(5, "full", "free_and_held", 1, (2, 1), "alloc_for_decode", given, "free", freed, 7, last_event)
    (dump,) = mutation("node-lost").dumps
    assert Listed(dump, 0, page).never_asked_back is not was_freed
