"""Patches that observe."""
