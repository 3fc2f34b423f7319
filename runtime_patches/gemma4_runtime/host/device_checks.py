"""Answers SGLang's start-up question "is this Blackwell?", which gates the trtllm_mha backend."""


def is_sm100_supported(device: object = None) -> bool:
    """Stand in for an sm100 device in argument checks, whichever device model attention uses."""
    return True
