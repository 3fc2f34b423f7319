"""Runs one load on several attention backends or patch sets, and says where they first part, and from transformers."""
