"""rmsnorm_residual_scalar: the end of a layer, norm, residual sum and layer scalar, in one launch."""
