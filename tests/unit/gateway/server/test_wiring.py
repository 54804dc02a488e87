"""A server is not built for settings that name models that are not there."""

import msgspec
import pytest

from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server.wiring import build_server
from sluice.models.errors import ConfigError
from sluice.models.repository.scan import BrokenEntry, Repository

NOTHING = Repository({}, {}, ())
BROKEN = Repository({}, {}, (BrokenEntry("small", 1, "no file"),))


def config(**sections: object) -> ServerConfig:
    return msgspec.convert(sections, ServerConfig)


@pytest.mark.parametrize("repository", [NOTHING, BROKEN])
@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"models": {"smal": {}}}, "models.smal: there is no model of that name; those served are "),
        ({"residency": {"pinned": ["smal"]}}, "residency: there is no model or pipeline smal"),
    ],
)
def test_settings_of_a_model_that_is_not_there_are_refused(
    repository: Repository, sections: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        build_server(config(**sections), repository, None)
    assert str(refused.value) == reason
