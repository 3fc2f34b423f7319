"""Patches that make a step faster and leave its result as it is."""
