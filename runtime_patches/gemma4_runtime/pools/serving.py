"""How much of the sliding-window pool SGLang 0.5.13.post1 keeps for one request, from the arguments of a launch.

Read in its source and held against the live engine's own counters (tests/engine/test_swa_peak_live.py). It is more
than a window, for three reasons:

| what is kept                                  | where                                      | as long as             |
|-----------------------------------------------|--------------------------------------------|------------------------|
| the last nodes of the prompt in the prefix    | swa_radix_cache.py, `inc_lock_ref`: whole  | the request runs       |
|   cache, as many as cover a window. A node is |   nodes; `cache_unfinished_req` inserts a  |                        |
|   a chunk of a prefill                        |   chunk as one                             |                        |
| its own window, a page, and what one interval | schedule_batch.py, `_evict_swa`, at each   | until the next         |
|   adds behind it. The interval counts steps,  |   step with decode_batch_idx % interval    |   eviction             |
|   and an MTP step adds up to draft_tokens     |   == 1 (`maybe_evict_swa`)                 |                        |
| without a prefix cache: the chunks in flight, | `maybe_evict_swa` before each chunk; with  | its second decode step |
|   or a whole prompt that is no longer         |   overlap one chunk late                   |                        |

Prefills come before decodes, so a burst of prompts holds all of them before any of it is given back.
"""

from __future__ import annotations

from dataclasses import dataclass

ENDLESS = 1 << 62


@dataclass(frozen=True)
class Serving:
    """What of the launch arguments decides how long sliding-window KV is kept.

    Attributes:
        window: W, `sliding_window` of the config.
        chunk: --chunked-prefill-size.
        chunks_in_flight: 2 with overlap scheduling, else 1.
        draft_tokens: --speculative-num-draft-tokens, 0 without MTP.
        evict_multiplier: SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER, in windows.
        prefix_cache: no --disable-radix-cache.
        split_leaf: SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT, which cuts the last node of a prompt to a window.
        release_leaf_lock, drop_page_margin: SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW and
            SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN, which give back earlier: not counted, but remarked on.
    """

    window: int
    page_size: int = 1
    chunk: int = 8192
    chunks_in_flight: int = 2
    draft_tokens: int = 0
    evict_multiplier: float = 1.0
    prefix_cache: bool = True
    split_leaf: bool = False
    release_leaf_lock: bool = False
    drop_page_margin: bool = False

    def swa_tokens(self, prompt: int, output: int) -> int:
        """Return the most that one request holds from its last chunk on, in whole pages; all may do so at once.

        With reach = W - 1, which is SGLang's sliding_window_size, step = the most tokens of a decode step, p the page,
        interval as `maybe_evict_swa` rounds it, and each line rounded up to whole pages:

            own       = interval * step + overlap + reach + p + p - 1     behind the prompt's nodes
            locked    = min(prompt, reach - p + longest node)             whole nodes until a window is covered
            request   = locked + min(own, output)

        It is a bound, and not what is seen, where the last chunk covers a window (in a batch nobody chooses where a
        chunk ends), where drafts are rejected, and where `remarks` says that KV is given back earlier.
        """
        end = self.full_tokens(prompt + output)
        if not self.prefix_cache:
            return min(end, max(self.own_most, self._unshared_prefill(prompt)))
        protected = self._protected(prompt)
        return self._locked(protected) + min(self.own_most, end - protected)

    def full_tokens(self, length: int) -> int:
        """Return what a request holds at its end, whole pages, with the drafts of its last step."""
        return self.whole_pages(length + self._step - 1)

    def worst_split(self, length: int) -> tuple[int, int]:
        """(prompt, output) of so many tokens for which `swa_tokens` is largest: as much output as is ever kept."""
        if not self.prefix_cache:
            return length, 0
        protected = self.full_tokens(length) - self.own_most
        prompt = max(1, min(length, protected + bool(self.draft_tokens)))
        return prompt, length - prompt

    def swa_in_prefill(self, prompt: int) -> int:
        """Say what one more chunk takes, to be admitted and written, beside requests that hold all of `swa_tokens`."""
        return self.admission_budget(prompt) + self.page_size

    def admission_budget(self, prompt: int) -> int:
        """schedule_policy.py, `_swa_budget_for_req`: more than this has to be left."""
        return max(self.whole_pages(min(prompt, self.chunk)), self._reach) + self.page_size

    @property
    def remarks(self) -> tuple[str, ...]:
        """What whoever reads the counts has to know of these settings, in words."""
        found = []
        if self._interval == 1:
            found.append(
                "an eviction interval of one step (a page, or SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER times the window "
                "if that is more): SGLang then gives no window back before a request ends; all of its output is counted"
            )
        if self.release_leaf_lock and self.prefix_cache:
            found.append(
                "SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW: a prompt's last nodes are given back after a window of "
                "decode steps; counted as if they were kept"
            )
        if self.drop_page_margin:
            found.append(
                "SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN: each request keeps a page less than is counted, and a finished "
                "one may leave no sliding KV for the next prompt that begins alike"
            )
        return tuple(found)

    @property
    def own_most(self) -> int:
        """Tokens behind the prompt's nodes, whole pages."""
        if self._interval == 1:
            # `decode_batch_idx % 1 == 1` is never true: nothing is given back.
            return ENDLESS
        kept = self._interval * self._step + (self.chunks_in_flight - 1) + self._reach + self.page_size
        return self.whole_pages(kept + self.page_size - 1)

    def whole_pages(self, tokens: int) -> int:
        """Rounded up."""
        return -(-tokens // self.page_size) * self.page_size

    @property
    def _reach(self) -> int:
        """models/gemma4_causal.py, `get_attention_sliding_window_size`."""
        return self.window - 1

    @property
    def _step(self) -> int:
        """Tokens that a decode step adds at most: all drafts accepted."""
        return max(1, self.draft_tokens)

    @property
    def _interval(self) -> int:
        """Steps between two evictions."""
        steps = max(self.page_size, int(self._reach * self.evict_multiplier))
        return steps // self.page_size * self.page_size

    def _protected(self, prompt: int) -> int:
        """Tokens of the prompt that the prefix cache takes: whole pages, and with MTP pairs of tokens."""
        units = prompt - 1 if self.draft_tokens else prompt
        return units // self.page_size * self.page_size

    def _locked(self, protected: int) -> int:
        """See `swa_tokens`. A finished request leaves nodes too: of what it held itself."""
        window = self.whole_pages(self._reach)
        longest = window if self.split_leaf else max(self.whole_pages(self.chunk), self.own_most)
        return min(protected, window - self.page_size + longest)

    def _unshared_prefill(self, prompt: int) -> int:
        """Run before the second decode step, without a prefix cache."""
        chunks = self.chunk * self.chunks_in_flight
        kept = chunks + self._reach + 2 * self.page_size + self._step
        return min(self.whole_pages(prompt + self._step), self.whole_pages(kept))
