"""cross_layer_norm: the end of a layer and the input norm of the next one, in one launch."""
