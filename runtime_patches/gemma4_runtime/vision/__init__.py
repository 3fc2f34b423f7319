"""What the batched vision encoder and its exact form share."""
