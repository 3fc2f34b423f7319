"""Reads serving logs: `source` opens them, `read` goes through one once, `rules/` says what its facts mean."""
