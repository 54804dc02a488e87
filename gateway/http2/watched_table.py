"""The dynamic table of a decoder (RFC 7541, section 2.3.2), which tells whether it has changed."""

from hpack.table import HeaderTable


class WatchedTable(HeaderTable):
    """A dynamic table that counts the entries added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Add an entry, and count it."""
        self.changes += 1
        super().add(name, value)
