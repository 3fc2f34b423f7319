"""post_attention_norms: what a dense layer does between attention and its MLP, in one launch."""
