"""BentoML: a service for the model in PEERS_MODELS, with adaptive batches.

After https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html and …/build-with-bentoml/iotypes.html.
"""

from pathlib import Path
from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import ContentType
from served_models import MOST_ROWS, chosen

(SERVED,) = chosen()
LATENCY_MS = 50


@bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Rows:
    """Rows as lists."""

    def __init__(self) -> None:
        self.run = SERVED.open()

    @bentoml.api(batchable=True, max_batch_size=MOST_ROWS, max_latency_ms=LATENCY_MS)
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.run(x.astype(SERVED.dtype))


@bentoml.service(workers=1, metrics={"enabled": False}, logging={"access": {"enabled": False}})
class Image:
    """An image as the body, which BentoML hands over as a file; files are not batched."""

    def __init__(self) -> None:
        self.run = SERVED.open()

    @bentoml.api
    def predict(self, x: Annotated[Path, ContentType("application/octet-stream")], /) -> np.ndarray:
        return self.run(SERVED.rows_of(x.read_bytes()))
