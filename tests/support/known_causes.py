"""What each piece of committed evidence is of, and the rule that has to say so first."""

# Faults of the corpus.
CAUSES = {
    "swa-state-stale": "draft-swa-state-stale",
    "hybrid-pool-unswapped": "pool-swap-missed-leaf",
    "full-draft-through-swa-map": "draft-reads-translated-ids",
    "page-past-the-end": "page-past-pool-end",
    "one-untranslated-row": "row-not-translated",
    "negative-page": "unassigned-page",
    "stale-mapping": "mapping-outlives-page",
    "page-over-count": "evicted-page-counted",
    "deferred-free-after-replacement": "swa-page-replaced-before-free",
    "draft-pool-too-small": "draft-pool-too-small",
    "eager-out-cache-loc": "write-locations-left-over",
    "unmergeable-spec-info": "verify-input-left-on-batch",
    "row-too-short": "row-too-short",
    "double-bookkeeping": "finished-requests-not-released",
    "finish-inside-forward": "finished-requests-not-released",
    "window-one-too-wide": "window-one-too-wide",
    "free-of-page-zero": "unset-slot-freed",
    "alloc-on-one-pool": "failed-allocation-keeps-pages",
    "swa-alloc-oob": "allocator-past-pool-end",
}

# dumps/samples, by the beginning of the name: what happened, the public issue, the rule.
SAMPLES = {
    "20261121T103430": ("the seed bug, trapped on a CPU", "SGLang 26957", "draft-swa-state-stale"),
    "20261121T133240": ("pages that an ended request left behind", "SGLang 11970", "pages-leaked"),
    "20261121T133817": ("the seed bug, contained on an H200", "SGLang 26957", "draft-swa-state-stale"),
    "20261122T141637": ("a request with more slots than its row has columns", "SGLang 33579", "row-too-short"),
    "20261123T173723": ("a mapping that outlives its page", "SGLang 25805", "mapping-outlives-page"),
}

# tests/data/logs: what the server met, the public issue if it is one, the rule; None: nothing is wrong.
LOGS: dict[str, tuple[str, str | None, str | None]] = {
    "illegal-access": ("the seed bug without probes: the crash", "SGLang 26957", "illegal-access"),
    "trapped": ("the seed bug, trapped", "SGLang 26957", "probe-stopped"),
    "hybrid-draft-pool": ("a hybrid draft backend without its fix", "SGLang 26966", "hybrid-draft-pool"),
    "stale-write-rows": ("an eager draft without its fix", "SGLang 29616", "stale-write-rows"),
    "probe-logged": ("the same, a probe only logging", "SGLang 29616", "probe-stopped"),
    "pool-leak": ("requests released once too seldom", "SGLang 7130", "pool-leak"),
    "out-of-memory": ("an allocation that fails in one pool of two", "SGLang 7909", "no-slot"),
    "swa-starved": ("a load whose SWA pool is too small", None, "binding-pool"),
    "full-starved": ("a load whose full pool is too small", None, "binding-pool"),
    "accept-drop": ("prompts that become hard to guess", None, "accept-length-drop"),
    "prefix-loss": ("prompts that stop sharing a prefix", None, "prefix-cache-loss"),
    "prefix-hits": ("prompts that share a prefix", None, None),
    "healthy": ("a load that fits", None, None),
}
