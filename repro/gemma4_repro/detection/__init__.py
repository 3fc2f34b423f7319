"""Runs known faults under all probes and says which probe saw which, with the right cause or not."""
