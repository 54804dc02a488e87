"""The choice between the text format of Prometheus and OpenMetrics, which has exemplars."""

import re

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""The content types of the two formats."""


def wants_openmetrics(accept: str) -> bool:
    """True if a scraper's `Accept` names the format, as Prometheus does before all others."""
    for entry in accept.split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        if kind == "application/openmetrics-text":
            return not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters)
    return False
