"""The generated files: pages of docs/reference, the page of papers, and the dashboard for Grafana."""

from scripts.reference.command_line import command_line_page
from scripts.reference.configuration import configuration_page
from scripts.reference.dashboard import dashboard
from scripts.reference.metrics import metrics_page
from scripts.reference.papers import papers_page


def generated_pages() -> dict[str, str]:
    """The text of each, by its path in the repository."""
    return {
        "docs/reference/configuration.md": configuration_page(),
        "docs/reference/cli.md": command_line_page(),
        "docs/reference/metrics.md": metrics_page(),
        "docs/evidence/papers.md": papers_page(),
        "deploy/grafana/sluice.json": dashboard(),
    }
