"""What is wrong with a question about pools."""


class PoolsError(Exception):
    """hint: what to do instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
