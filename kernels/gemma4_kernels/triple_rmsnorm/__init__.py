"""triple_rmsnorm: what a mixture-of-experts layer does between attention and its three consumers, in one launch."""
