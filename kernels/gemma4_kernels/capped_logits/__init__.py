"""capped_logits: logits as fp32 and capped by tanh, in one launch."""
