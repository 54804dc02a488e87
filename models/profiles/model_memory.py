"""What a model takes of memory."""

import msgspec


class ModelMemory(msgspec.Struct, frozen=True, array_like=True):
    """A batch of b rows takes `rest_bytes + b * row_bytes` beyond what a process takes without the model."""

    rest_bytes: int
    row_bytes: int = 0

    def of(self, rows: int) -> int:
        """Bytes of the model in batches of that many rows."""
        return self.rest_bytes + rows * self.row_bytes
