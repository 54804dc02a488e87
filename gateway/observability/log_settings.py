"""The log settings of the protocol, which clients change while the server runs."""

import logging
from collections.abc import Mapping

from sluice.gateway.observability.logs import LogFormat, current_settings, reconfigure
from sluice.models.errors import RequestError, UnsupportedRequest

LogValue = bool | int | str

_LEVELS = {
    "log_info": (logging.INFO,),
    "log_warning": (logging.WARNING,),
    "log_error": (logging.ERROR, logging.CRITICAL),
}
_FORMATS = ("default", "ISO8601", "json")


class LogSettings:
    """The settings of the protocol, which start as the process was started.

    `log_format` is `default` (that of the start), `ISO8601` (text) or `json`; a `log_verbose_level` above 0 adds debug
    messages. The log is standard error: there is no `log_file`.
    """

    def __init__(self) -> None:
        self._default, level = current_settings()
        self._settings: dict[str, LogValue] = {
            "log_file": "",
            **{name: level <= levels[0] for name, levels in _LEVELS.items()},
            "log_verbose_level": int(level <= logging.DEBUG),
            "log_format": _FORMATS[0],
        }

    def get(self) -> dict[str, LogValue]:
        """All settings."""
        return dict(self._settings)

    def update(self, changes: Mapping[str, object]) -> None:
        """Change some settings; if one of the values is wrong, change none and raise RequestError."""
        checked = {name: self._check(name, value) for name, value in changes.items()}
        if not checked:
            return
        self._settings |= checked
        settings = self._settings
        levels = {level for name, each in _LEVELS.items() if settings[name] for level in each}
        if settings["log_verbose_level"]:
            levels.add(logging.DEBUG)
        formats = dict(zip(_FORMATS, (self._default, LogFormat.TEXT, LogFormat.JSON), strict=True))
        reconfigure(formats[str(settings["log_format"])], levels)

    def _check(self, name: str, value: object) -> LogValue:
        if name not in self._settings:
            raise RequestError(f"log setting '{name:.80}' is unknown; expected one of {', '.join(self._settings)}")
        if name == "log_file":
            raise UnsupportedRequest("log file location can not be updated through network protocol")
        if name in _LEVELS:
            if not isinstance(value, bool):
                raise RequestError(f"log setting '{name}' must be true or false, got {value!r:.80}")
            return value
        if name == "log_format":
            if value not in _FORMATS:
                raise RequestError(f"log setting 'log_format' must be one of {', '.join(_FORMATS)}, got {value!r:.80}")
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RequestError(f"log setting '{name}' must be a whole number of at least 0, got {value!r:.80}")
        return value
