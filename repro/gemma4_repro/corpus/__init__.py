"""The corpus: one record per file, a fault that some release had or a clean load. Listed in detection/catalog.py."""
