"""qk_norm_rope: the norms of a layer's queries, keys and values and the rotation of the first two, in one launch."""
