"""page_guard: check, count and contain out-of-range page ids and token slots of one metadata build, in one launch."""
