"""Lets an arm's requests in one by one.

Runs inside the engine's processes; harness, not part of the patched runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import dotted_path


class AfterLastRounds(Recorder):
    """Lets the first request in when all have come, each further one when all that run have just finished in a decode.

    It is then that SGLang merges a prefill into a batch whose requests have all finished and are still there: a window
    of one pass of the scheduler's loop, which a client meets by chance. All must have come by then: a picture may take
    longer to read than a prompt to answer, and no window opens again once the scheduler is idle.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._held: list[Any] = []
        self._served = False

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "scheduler.process_input"), self, HookType.AROUND)

    def __call__(self, original: Callable[..., None], scheduler: Any, received: list[Any]) -> None:
        """Run around `process_input_requests(received)`."""
        from sglang.srt.managers.io_struct import BatchTokenizedGenerateReqInput, TokenizedGenerateReqInput

        # Each is a request; without a picture it comes as a batch of one.
        held = (TokenizedGenerateReqInput, BatchTokenizedGenerateReqInput)
        self._held += [one for one in received if isinstance(one, held)]
        due = [one for one in received if not isinstance(one, held)]
        complete = self._served or len(self._held) == self._expected
        if self._held and complete and (not self._served or _all_finished(scheduler.last_batch)):
            self._served = True
            due.append(self._held.pop(0))
        original(scheduler, due)


def _all_finished(last: Any) -> bool:
    return last is not None and last.forward_mode.is_decode() and all(request.finished() for request in last.reqs)
