"""page_guard: check, count and contain out-of-range page ids of one metadata build, in one launch."""
