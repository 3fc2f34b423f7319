"""What runs inside SGLang: the plugin, its catalog of patches, probes, fixes, faults and the host engine."""
