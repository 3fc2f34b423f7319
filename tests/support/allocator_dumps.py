"""Dumps of an allocator's calls: made from its history without a violation, and with its calls changed."""

import itertools
import random
from dataclasses import replace

import torch

from gemma4_dumps.reader import read_dump
from gemma4_dumps.writer import write_dump
from gemma4_runtime.probes import swa_allocator_state
from swa_pools import decode, extend, make_allocator

_numbers = itertools.count()


def draft_of(allocator, verdict="double_free"):
    """Say what a dump would hold if the probe reported something now."""
    site = "SWATokenToKVPoolAllocator.free"
    draft = swa_allocator_state.draft_of(allocator, "swa-double-free", verdict, site, "made by a test", {})
    return replace(draft, mode="log", action="logged")


def write(root, draft):
    """Return the dump of a draft, in a store of its own below `root`."""
    outcome = write_dump(root / f"store{next(_numbers)}", draft)
    assert outcome.path is not None, outcome
    return read_dump(outcome.path)


def with_calls(draft, calls):
    """Return the draft with other calls, numbered as they come, and without what the dump says of the end."""
    numbered = [call | {"number": at} for at, call in enumerate(calls)]
    tensors = {name: value for name, value in draft.tensors.items() if not name.startswith("free_pages")}
    return replace(draft, events=numbered, tensors=tensors)


def lived(seed, page=16, need_sort=False):
    """Return an allocator after some forty legal calls: requests begin, decode, leave the window and end."""
    random_, allocator, requests = random.Random(seed), make_allocator(page, need_sort), []
    for _ in range(40):
        match random_.randrange(5):
            case 0 | 1 if allocator.available_size() > 6 * page:
                requests.append(extend(allocator, random_.randint(1, 4 * page)).tolist())
            case 2 | 3 if requests and allocator.available_size() > len(requests) * page:
                for request in requests if page == 1 else ():
                    request += allocator.alloc(1).tolist()
                if page > 1:
                    for request, slot in zip(requests, decode(allocator, requests).tolist(), strict=True):
                        request.append(slot)
            case _ if requests:
                allocator.free(torch.tensor(requests.pop(random_.randrange(len(requests)))))
    return allocator
