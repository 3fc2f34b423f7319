"""decode_attention: one query per request over the keys and values of its slots, in one launch."""
