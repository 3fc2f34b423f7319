"""token_embeddings: the scaled rows of a step's tokens in the embedding and the per-layer one, in one launch."""
