"""Pure checks: tensors and bounds in, a Violation or None out."""
