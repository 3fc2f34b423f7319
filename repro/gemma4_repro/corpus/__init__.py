"""The corpus runs known faults and clean loads under all probes, and says which probe saw which, and why."""
