"""gelu_tanh_mul: the gate of a per-layer embedding, in one launch."""
