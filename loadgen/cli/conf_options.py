"""The options that name LoadGen's configuration files, and what the files say as defaults of other options."""

import argparse
import sys
from collections.abc import Mapping

from sluice.loadgen.mlperf.settings import ConfKind, read_settings
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.models.command_line import Parser


def add_conf_options(parser: Parser) -> None:
    """Add the options; `conf_defaults` reads the files."""
    add = parser.group("mlperf").add_argument
    add(ConfKind.MLPERF, metavar="FILE", help="mlperf.conf: keys of LoadGen as defaults of these options, and seeds")
    add(ConfKind.USER, metavar="FILE", help="user.conf: the same without seeds")
    add(ConfKind.AUDIT, metavar="FILE", help="audit.config: the same without seeds")
    parser.set_defaults(kept_outputs=None)
    add("--mlperf-model", default="", metavar="NAME", help="model in these files (default: that of --model)")


def conf_defaults(options: argparse.Namespace) -> Mapping[str, object]:
    """The defaults that the named files give other options, by `dest`; none where the command takes no files.

    A note on stderr names each setting without effect. Raises `ConfigError` as `read_settings` does.
    """
    given = ((kind, getattr(options, kind.removeprefix("--").replace("-", "_"), None)) for kind in ConfKind)
    files = [(kind, path) for kind, path in given if path is not None]
    if not files:
        return {}
    scenario = ScenarioName(getattr(options, "scenario", ScenarioName.SERVER))
    settings = read_settings(files, options.mlperf_model or options.model, scenario)
    for note in settings.notes:
        print(f"loadgen: {note}", file=sys.stderr)
    return settings.defaults
