"""The packages in which components and their YAML files are found: asr, its apps, and the plugins that a command names.

Some folders of `asr/apps` have the form of a plugin, but need no option: each is used where it is there. A plugin is
imported only because the command names it, never because a bundle or a checkpoint does: a bundle may come from an
untrusted source, and importing a package runs its code.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asr.base.settings.rule import Rule, list_of
from asr.errors import InputError, reason_of, shown

NAME = Rule(
    "the dotted name of a package outside of asr",
    lambda value: (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", value, re.ASCII) is not None
        and value.partition(".")[0] != "asr"
    ),
)
NAMES = list_of(NAME, "of packages, such as [mylab.speech]")
KEY = "plugins"  # key of the names in the config of a bundle or checkpoint; absent if asr alone can build the model


@dataclass(frozen=True)
class Home:
    """A package with components.

    Args:
        package: dotted name of the package; `<package>.<group>.<name>` is the module of a component.
        folder: folder of the package.
        conf: folder of the YAML files, `<conf>/<group>/<name>.yaml`.
        elsewhere: packages of those groups that are not in this package.
    """

    package: str
    folder: Path
    conf: Path
    elsewhere: "Mapping[str, Home]" = field(default_factory=dict)

    def of(self, group: str) -> "Home":
        """Return the package that contains a group, such as encoder or encoder/block/norm."""
        return self.elsewhere.get(group.partition("/")[0], self)

    @property
    def is_ours(self) -> bool:
        """Whether the package belongs to asr."""
        return self.package.partition(".")[0] == "asr"


_HERE = Path(__file__).parents[2]
_CONF = _HERE / "conf" if (_HERE / "conf").is_dir() else _HERE.parent / "conf"  # in a wheel: inside
OURS = Home("asr.components", _HERE / "components", _CONF, {"objective": Home("asr.core", _HERE / "core", _CONF)})


def _app(name: str) -> Home:
    folder = _HERE / "apps" / name
    return Home(f"asr.apps.{name}", folder, folder / "conf")


ZOO = _app("zoo")
APPS = [_app("language_models"), _app("pretrain"), ZOO]

_named: dict[str, Home] = {}  # the plugins that the command has named, by package


def homes() -> list[Home]:
    """Return asr, those of its apps whose folders are there, and the plugins named so far."""
    return [OURS, *(app for app in APPS if app.folder.is_dir()), *_named.values()]


def use(packages: Iterable[str], option: str = "plugins") -> None:
    """Use the components of these packages, in this process, from now on.

    Call it only with names that the user's command or program gives.

    Args:
        packages: dotted names of the packages.
        option: the user's name for the setting, for errors.

    Raises:
        InputError: a package does not exist, or has a YAML file with the name of another package's.
    """
    for package in packages:
        NAME.check(option, package)
        if package not in _named:
            _named[package] = _found(package, option)


def _found(package: str, option: str) -> Home:
    try:
        spec = importlib.util.find_spec(package)  # imports the packages that contain it
    except ImportError as error:
        raise InputError(f"{option}: {package} must be importable; {reason_of(error)}.") from None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if len(folders) != 1:
        cure = "Install it, or add the folder that contains it to PYTHONPATH"
        problem = "it is not a package with one folder" if spec else "it was not found"
        raise InputError(f"{option} must be a package that Python can import; got {package}: {problem}. {cure}.")
    home = Home(package, Path(folders[0]), Path(folders[0], "conf"))
    for path in sorted(home.conf.rglob("*.yaml")):
        name = path.relative_to(home.conf)
        for other in homes():
            if (other.conf / name).is_file():
                must = f"{option}: a file of {package} must not have the name of a file of {other.package}"
                raise InputError(f"{must}; got conf/{name}. Rename it.")
    return home


def check_named(packages: object, where: object) -> None:
    """Check that the command has named the plugins whose components a stored model has.

    Raises:
        InputError: a plugin is not named, or the value is not a list of names.
    """
    NAMES.check(f"{where}: {KEY}", packages)
    assert isinstance(packages, Sequence)
    for package in packages:
        if package not in _named:
            must = (
                f"{where}: this model has components of the plugin {shown(package)}, which must be named by the command"
            )
            cure = f"If you trust that package, give --plugin {package} (asr.train: plugins=[{package}])"
            raise InputError(f"{must}, because a model must not run code. {cure}.")


def any_named() -> bool:
    """Whether the command has named a plugin."""
    return bool(_named)


def plugin_of(module: str) -> str | None:
    """Return the plugin that contains a module; None for a module of asr."""
    return next((package for package in _named if module.startswith(f"{package}.")), None)
