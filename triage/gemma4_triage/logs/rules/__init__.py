"""One file per rule, each with a `RULE`; `catalog.py` above lists them."""
