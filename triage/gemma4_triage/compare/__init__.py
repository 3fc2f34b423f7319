"""Hold one dump against another: manifests, guards, tensors, events, and what differs first."""
