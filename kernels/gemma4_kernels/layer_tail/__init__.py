"""All of a dense decoder layer behind its attention in one launch, see spec.py."""
