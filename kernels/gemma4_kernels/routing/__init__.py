"""routing: top-k experts of each token and their weights, from router logits, in one launch."""
