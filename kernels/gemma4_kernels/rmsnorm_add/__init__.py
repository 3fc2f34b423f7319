"""rmsnorm_add: a layer's post-norm and the residual sum that follows it, in one launch."""
