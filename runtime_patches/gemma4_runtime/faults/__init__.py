"""Patches that re-inject a known defect, only ever on request."""
