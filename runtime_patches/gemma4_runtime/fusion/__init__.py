"""What the optimisations share: our kernels in the place of SGLang's sequences, and the record of which path ran."""
