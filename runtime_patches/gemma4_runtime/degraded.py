"""Requests that went on after `clamp` replaced what they were about to follow: marks, counts, log lines.

A mark hangs on its request, from the first clamped step on, and goes out with every output of that request.

After a clamped read a step may write wrong keys and values. If they were in the prefix cache, later requests would take
them over, and their replies would not say so:

| what was clamped               | what is done about the prefix cache                                               |
|--------------------------------|-----------------------------------------------------------------------------------|
| reads of a draft, no others    | nothing: what is cached are the target's keys, and they are right                 |
| a decode or a verify           | the request is told to skip the cache: nothing more of it is added                |
| a prefill, or its last chunk   | the same                                                                          |
| an earlier chunk of a prefill  | it cannot skip the cache, through which SGLang hands keys to its next chunk. The  |
|                                | cache is suspect until it is flushed, and every request that begins with tokens   |
|                                | from it is marked too (`from_prefix_cache`)                                       |

A retraction throws a request's keys away. What it then computes anew may be cached; the request stays marked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from gemma4_dumps.caps import RateLimit
from gemma4_runtime.steps import Concerned

logger = logging.getLogger(__name__)

KEY = "gemma4_degraded"
"""Of a reply's meta_info."""
LINES_PER_MINUTE = 12
_MARK = "_gemma4_mark"


@dataclass
class Mark:
    """What is known of a request that read replaced entries.

    Attributes:
        clamped_entries: over all metadata builds of all steps.
        roles: whose reads, `target` or `draft`.
        from_prefix_cache: the request began with cached tokens while the cache may hold keys of a clamped prefill.
        kept_from_cache: it was told to skip the prefix cache here, and not by SGLang, which tells some requests itself.
    """

    clamped_entries: int = 0
    first_step: int | None = None
    last_step: int | None = None
    roles: set[str] = field(default_factory=set)
    from_prefix_cache: bool = False
    kept_from_cache: bool = False

    def document(self) -> dict[str, Any]:
        return {
            "clamped_entries": self.clamped_entries,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "roles": sorted(self.roles),
            "from_prefix_cache": self.from_prefix_cache,
        }


class Degraded:
    """The marks of one scheduler process."""

    def __init__(self) -> None:
        # By request id; an id may be used again once its request is gone.
        self._marked: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._requests = self._entries = self._findings = self._unsaid = 0
        self._rate = RateLimit(LINES_PER_MINUTE)
        self._cache_is_suspect = False

    def mark(self, concerned: Concerned, entries: Mapping[int, int], role: str | None, said: str) -> None:
        """Requests of the rows in `entries`, which says how many entries each had replaced. said: what was found."""
        self._findings += 1
        self._entries += sum(entries.values())
        ids = []
        for row, request in concerned.by_row:
            mark = getattr(request, _MARK, None)
            if mark is None:
                mark = Mark(first_step=concerned.step)
                setattr(request, _MARK, mark)
                self._marked[request.rid] = request
                self._requests += 1
            mark.clamped_entries += entries.get(row, 0)
            mark.last_step = concerned.step
            mark.roles.add(role or "target")
            ids.append(request.rid)
            if role != "draft":
                self._keep_out_of_cache(request, mark, concerned)
        self._say(f"{said}; replaced by the null page, DEGRADED: {', '.join(dict.fromkeys(ids)) or 'no request'}")

    def outputs(self, payload: Any) -> None:
        """Have a BatchTokenIDOutput take the marks of its requests along."""
        if not self._marked and not self._cache_is_suspect:
            return
        marks = [self._mark_of(rid, cached) for rid, cached in zip(payload.rids, payload.cached_tokens, strict=True)]
        if any(marks):
            # A list for each request, as SGLang's own collection of such keys has it.
            payload.customized_info = {**(payload.customized_info or {}), KEY: [[m] if m else [] for m in marks]}

    def computed_anew(self, request: Any) -> None:
        """Let what a retracted request computes from now on be cached, if nobody but us was against it."""
        mark = getattr(request, _MARK, None)
        if mark is not None and mark.kept_from_cache:
            request.skip_radix_cache_insert = mark.kept_from_cache = False

    def cache_was_flushed(self) -> None:
        self._cache_is_suspect = False

    def document(self) -> dict[str, Any]:
        """Return it for /server_info; `requests` are those whose own entries were replaced, of a prefix see `Mark`."""
        return {
            "requests": self._requests,
            "clamped_entries": self._entries,
            "findings": self._findings,
            "prefix_cache_is_suspect": self._cache_is_suspect,
        }

    def _mark_of(self, rid: str, cached_tokens: int) -> dict[str, Any] | None:
        mark = getattr(self._marked.get(rid), _MARK, None)
        suspect = self._cache_is_suspect and cached_tokens > 0
        if mark is None:
            return Mark(roles={"target"}, from_prefix_cache=True).document() if suspect else None
        mark.from_prefix_cache |= suspect
        return mark.document()

    def _keep_out_of_cache(self, request: Any, mark: Mark, concerned: Concerned) -> None:
        if any(request is chunked for chunked in concerned.chunked):
            # SGLang goes from chunk to chunk through the prefix cache.
            self._cache_is_suspect = True
        elif not request.skip_radix_cache_insert:
            request.skip_radix_cache_insert = mark.kept_from_cache = True

    def _say(self, text: str) -> None:
        if not self._rate.admits():
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more findings since the last line)" if self._unsaid else ""
        self._unsaid = 0
        # As an error: SGLang's Engine sets the log level to `error` by default.
        logger.error("gemma4-triage: clamp: %s%s", text, more)


DEGRADED = Degraded()
