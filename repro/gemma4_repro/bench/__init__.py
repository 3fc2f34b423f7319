"""What the probes cost: SGLang's server once per arm, all of them up together, one at work at a time."""
