"""What to do about a dump: a table from what was found to what to run. The first row that fits is used.

Commands shown here must exist; a test runs each one's --help.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from gemma4_dumps.schema import Manifest


@dataclass(frozen=True)
class Advice:
    """Applies where every field that is not None equals the manifest's."""

    steps: tuple[str, ...]
    rule: str | None = None
    verdict: str | None = None
    table_space: str | None = None
    buffer_space: str | None = None

    def fits(self, manifest: Manifest) -> bool:
        found = (manifest.rule, manifest.verdict, manifest.provenance.table_space, manifest.provenance.buffer_space)
        wanted = (self.rule, self.verdict, self.table_space, self.buffer_space)
        return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


_SWA_STATE_SWAP = (
    "Known: the draft backend kept the SWA state of its own pool. The fix is `swa-state-swap`.",
    "Serve with GEMMA4_TRIAGE_PATCHES=default to attach it.",
    "See what is attached where: gemma4-triage patches",
    "Watch it crash, be trapped and be fixed on a CPU: gemma4-triage repro e4b-trtllm",
)

_AUDIT = (
    "See the pages, their owner and the equation: gemma4-triage audit DUMP",
    "Audit every few steps to catch the step at which it happens: GEMMA4_TRIAGE_LEAK=raise GEMMA4_TRIAGE_LEAK_EVERY=8",
)

NEXT_STEPS: tuple[Advice, ...] = (
    Advice(
        (
            "Nobody will free these pages: look at what the site in the summary does when its request ends.",
            *_AUDIT,
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        rule="leak-audit",
        verdict="pool_leak",
    ),
    Advice(
        (
            "Tokens count as held in the sliding-window pool, and their SWA slots are gone: the sum exceeds the pool.",
            "Compare swa_evicted_seqlen of the request that cached these pages with what free_swa was given.",
            *_AUDIT,
        ),
        rule="leak-audit",
        verdict="null_page_live",
    ),
    Advice(_SWA_STATE_SWAP, verdict="out_of_range", table_space="full", buffer_space="swa"),
    Advice(_SWA_STATE_SWAP, verdict="wrong_space", table_space="full", buffer_space="swa"),
    Advice(
        (
            "Draft indices met a buffer of the target, or the other way round: see above which pool was left behind.",
            "Serve with GEMMA4_TRIAGE_PATCHES=default and see whether it stays away: gemma4-triage patches",
            "Check that every guard attached: gemma4-triage doctor",
        ),
        verdict="wrong_space",
    ),
    Advice(
        (
            "A live column holds the null page: evicted, or never mapped. Compare the row with its sequence length.",
            "If the request had already finished, this is stale metadata and harmless; if not, its attention is wrong.",
            "Check that every guard attached: gemma4-triage doctor",
        ),
        verdict="null_page_live",
    ),
    Advice(
        (
            "An allocator gave out an index beyond its pool: look at the events before it for a free or a restore.",
            "If GEMMA4_TRIAGE_FAULTS names swa-alloc-oob (see guards), the fault was injected.",
        ),
        verdict="alloc_out_of_range",
    ),
    Advice(
        (
            "A page has reached a second user, who overwrites the KV of the first: trust no output since.",
            "Look for what freed it too early: serve with SGLANG_TRTLLM_MHA_DEBUG=trap, which stops at a double free.",
            "page_states in the dump holds, per slot, the state of its full page and the owner of its SWA page.",
        ),
        verdict="alloc_overlap",
    ),
    Advice(
        (
            "Whoever frees this slot never allocated it: page 0 is the dummy that padded tokens write to.",
            "Released, it would be handed out as a normal page. Look at the caller's row: unset entries hold 0.",
        ),
        verdict="free_out_of_range",
    ),
    Advice(
        (
            "Two owners believe that they hold these slots, or one owner frees them on two paths.",
            "Compare slots in the dump with the prefix cache's insert and the request's release (release_kv_cache).",
            "SGLang hides this within one call or one free_group: it frees every page once.",
        ),
        verdict="double_free",
    ),
    Advice(
        (
            "SGLang 0.5.13 releases SWA pages whole and clears only the mapping entries that it was given.",
            "Look for a caller of free_swa that names part of a page; from 0.5.14 on the whole page is cleared.",
        ),
        verdict="stale_mapping",
    ),
    Advice(
        (
            "Two full pages share one SWA page: both requests write their sliding-window KV there.",
            "page_states in the dump names, per slot, the full page that the SWA page serves.",
        ),
        verdict="pool_alias",
    ),
    Advice(
        (
            "These pages are neither free nor held; the pool stays smaller until it is cleared or restarted.",
            "After a failed alloc_decode one of the two pools was full: see full_available and swa_available above.",
            "Give the fuller pool more tokens: --swa-full-tokens-ratio, or --mem-fraction-static for both.",
        ),
        verdict="pool_leak",
    ),
    Advice(
        (
            "Somebody freed pages that a request or the prefix cache still reads: the next owner overwrites them.",
            *_AUDIT,
        ),
        verdict="freed_in_use",
    ),
    Advice(
        (
            "A write outside the buffer corrupts another tensor: trust no result since the first such write.",
            "Serve with SGLANG_TRTLLM_MHA_DEBUG=trap to stop before the first one.",
        ),
        verdict="write_out_of_range",
    ),
    Advice(
        (
            "Known: with CUDA graphs off, V1 verify leaves the target's write locations on the draft's batch.",
            "The fix is `eager-out-cache-loc`; serve with GEMMA4_TRIAGE_PATCHES=default to attach it.",
            "Watch it being caught on a CPU: gemma4-triage repro corpus --only eager-out-cache-loc",
        ),
        verdict="stale_write_rows",
    ),
    Advice(
        (
            "A speculative worker handed a batch back without an input for its next draft.",
            "Known: FROZEN_KV_MTP before 0.5.13 did, when all requests finished in one verify round.",
            "Watch it being caught on a CPU: gemma4-triage repro corpus --only unmergeable-spec-info",
        ),
        verdict="unusable_spec_info",
    ),
    Advice(
        (
            "Indices below zero are legal only as a last location: look for an unset entry in the table above.",
            "Check that every guard attached: gemma4-triage doctor",
        ),
        verdict="negative",
    ),
    Advice(
        (
            "SGLang up to 0.5.22 shows Gemma-4's sliding layers one key more than transformers does (found = W).",
            "Outputs as in transformers: serve with GEMMA4_TRIAGE_PATCHES=default,+swa-window-width",
            "If found is not W, look for who else sets sliding_window_size: gemma4-triage patches",
        ),
        rule="geometry",
        verdict="window_width",
    ),
    Advice(
        (
            "If it is the pool that a draft reads: it has to be as large as the target's. Do not serve; outputs of "
            "the draft come from outside its pool (SGLang issue 17630).",
            "If it is the SWA pool: see expected above, and raise --swa-full-tokens-ratio or --max-total-tokens, or "
            "lower --chunked-prefill-size.",
        ),
        rule="geometry",
        verdict="pool_too_small",
    ),
    Advice(
        (
            "A draft backend would read the SWA pool with full-pool page ids. The fix is `swa-state-swap`.",
            "Serve with GEMMA4_TRIAGE_PATCHES=default to attach it.",
            "Watch it crash, be trapped and be fixed on a CPU: gemma4-triage repro e4b-trtllm",
        ),
        rule="geometry",
        verdict="swa_state",
    ),
    Advice(
        (
            "If the pool of a backend's node differs, a pool swap left it behind: serve with "
            "GEMMA4_TRIAGE_PATCHES=default, which attaches `swa-state-swap`.",
            "Without it: --speculative-draft-attention-backend trtllm_mha gives the draft a backend without children.",
            "If a layer id, head count or head dim differs, draft and target are checkpoints of different models.",
            "Page size, context length and KV dtype come from the launch arguments: see above.",
        ),
        rule="geometry",
        verdict="geometry_mismatch",
    ),
)

_ANYTHING_ELSE = ("See which fixes this runtime knows: gemma4-triage patches",)


def next_steps(manifest: Manifest, dump_directory: Path) -> list[str]:
    """The lines to show under "what to do next", most useful first."""
    found = next((advice.steps for advice in NEXT_STEPS if advice.fits(manifest)), _ANYTHING_ELSE)
    return [*found, f"Make sure that this dump is whole: gemma4-triage dumps verify {shlex.quote(str(dump_directory))}"]
