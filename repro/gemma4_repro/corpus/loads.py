"""Loads of a few seconds that several cases share."""

from __future__ import annotations

from gemma4_repro.staged_workload import at_once
from gemma4_repro.workloads import SWA_PRESSURE, Workload

BRIEF = at_once(Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=24, longest_new_tokens=40))
"""Two requests, long enough for a dozen rounds with MTP."""

PAST_THE_WINDOW = at_once(Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=110, longest_new_tokens=120))
"""Two requests that leave the toys' window of 32 tokens so far behind that SWA pages are given back while they run."""

UNDER_PRESSURE = at_once(SWA_PRESSURE)
"""Eight requests that nearly fill the SWA pool, until full-pool page ids lie beyond its end."""
