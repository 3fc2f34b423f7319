"""Patches that repair a known defect."""
