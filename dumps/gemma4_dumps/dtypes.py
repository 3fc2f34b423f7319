"""Element types of stored tensors.

| dtype name (torch's)  | safetensors tag | NumPy array that a reader gets      |
|-----------------------|-----------------|-------------------------------------|
| float32, int64, bool… | F32, I64, BOOL… | the same type                       |
| bfloat16              | BF16            | uint16 bits; `to_float32` decodes   |
| float8_e4m3fn, _e5m2  | F8_E4M3, F8_E5M2| uint8 bits; `to_float32` decodes    |
"""

import numpy as np

_NATIVE = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_BITS_ONLY = {
    "bfloat16": ("BF16", "uint16"),
    "float8_e4m3fn": ("F8_E4M3", "uint8"),
    "float8_e5m2": ("F8_E5M2", "uint8"),
}

SAFETENSORS_TAG: dict[str, str] = _NATIVE | {name: tag for name, (tag, _) in _BITS_ONLY.items()}


def storage_dtype(name: str) -> np.dtype:
    """Return the NumPy type of one element of dtype `name`, little-endian. Raises KeyError for an unknown name."""
    if name not in SAFETENSORS_TAG:
        raise KeyError(name)
    return np.dtype(_BITS_ONLY[name][1] if name in _BITS_ONLY else name).newbyteorder("<")


def to_float32(bits: np.ndarray, name: str) -> np.ndarray:
    """Decode stored elements of dtype `name` to float32; exact for every type of 16 bits or fewer."""
    if name == "bfloat16":
        # bfloat16 is the upper half of a float32.
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if name == "float8_e4m3fn":
        return _E4M3FN[bits]
    if name == "float8_e5m2":
        # e5m2 is the upper half of a float16.
        return (bits.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    return bits.astype(np.float32)


def _e4m3fn_values() -> np.ndarray:
    code = np.arange(256)
    sign = np.where(code & 0x80, -1.0, 1.0)
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    # "fn": no infinities; all ones is the only NaN.
    value = np.where((code & 0x7F) == 0x7F, np.nan, value)
    return (sign * value).astype(np.float32)


_E4M3FN = _e4m3fn_values()
