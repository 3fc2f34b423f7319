"""ple_front_end: the per-layer inputs of all layers from their projection and their embedding, in one launch."""
