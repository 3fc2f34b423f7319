"""Runs inside a fresh process: an engine one of whose rows is overwritten while it decodes, so that SGLang raises.

Usage: python crash_child.py SPEC.json RESULT.json, spec: {"engine": {...}, "prompts": [...], "spoil": "row"}.
It never writes a result.
"""

import json
import sys

AT_STEP = 6
FAR_AWAY = 1 << 20


def plant(what: str) -> None:
    """Put slots that no pool has into the first page of a running request's row, or take the batch's lengths away.

    Args:
        what: "row" or "lengths".
    """
    from sglang.srt.managers.scheduler import Scheduler

    from gemma4_runtime.release.requests import held

    original = Scheduler.run_batch

    def run_batch(scheduler, batch, *args, **kwargs):
        if scheduler.forward_ct == AT_STEP:
            if what == "lengths":
                batch.seq_lens = None
            else:
                table = scheduler.req_to_token_pool.req_to_token
                table[held(batch.reqs[0]).req_pool_idx, : scheduler.page_size] = FAR_AWAY
        return original(scheduler, batch, *args, **kwargs)

    setattr(Scheduler, "run_batch", run_batch)  # noqa: B010


def main(spec_path: str, result_path: str) -> None:
    """Serve the prompts until the engine dies."""
    with open(spec_path) as file:
        spec = json.load(file)
    plant(spec.get("spoil", "row"))
    from sglang.srt.entrypoints.engine import Engine

    engine = Engine(**spec["engine"])
    engine.generate(input_ids=spec["prompts"], sampling_params={"temperature": 0, "max_new_tokens": 40})
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
