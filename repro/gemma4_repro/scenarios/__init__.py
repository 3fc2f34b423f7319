"""Scenarios, one file each; the catalog lists them."""
