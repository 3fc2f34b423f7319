"""The leak audit: what the probe `leak-ledger` keeps, reads and reports. Its hooks are in `probes/leak_*.py`."""
