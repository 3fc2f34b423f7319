"""One cause per file, each with `RULE`. Listed in diagnose/catalog.py."""
