"""What can be wrong with a dump, as seen by its reader. Nothing heavy is imported here: the CLI boundary needs it."""


class DumpError(Exception):
    """Base of every error that reading or finding a dump may raise."""


class DumpNotFound(DumpError):
    """No dump has that name, path or prefix, or the prefix fits several."""


class DumpUnreadable(DumpError):
    """The dump is torn, damaged, contradicts itself, or is not a dump."""


class StoreUnreadable(DumpUnreadable):
    """The folder that dumps are in cannot be listed."""


class DumpIncompatible(DumpError):
    """The dump was written with another major version of the schema."""
