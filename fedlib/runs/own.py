"""What is your own: a method, a net or a scheme that stands outside of the package.

Its module says so itself when it is imported, by the functions below and by
``data.add_folder``, as ``notebooks/learn/my_shapes.py`` does. ``use`` imports that
module, here and in the processes that compute for this one. Your code is followed into
the keys of its runs like any other; those of other runs stay.
"""

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from fedlib import registry
from fedlib.core import nets
from fedlib.core.net import Net, Shape
from fedlib.core.nets import Parts
from fedlib.partitions import DRAWS, SCHEMES, Partition
from fedlib.partitions.common import SchemeSettings
from fedlib.runs.spec import SettingError, Spec
from fedlib.support.sources import remember, where

USED = "FEDLIB_OWN"  # modules that every process imports, with commas between


def use(module: str, folder: Path | str | None = None) -> ModuleType:
    """Import a module that adds what is your own, and let every worker do so.

    Workers find it where this process does. Those on other machines need the module on
    their path, and ``FEDLIB_OWN`` with its name.

    Parameters
    ----------
    module : str
        Its dotted name; a file beside a notebook has the file's name without ``.py``.
    folder : Path, optional
        Where it is, if that is not on the path yet.

    Raises
    ------
    ModuleNotFoundError
        There is no such module on the path.
    """
    if folder is not None and str(Path(folder).resolve()) not in sys.path:
        sys.path.insert(0, str(Path(folder).resolve()))
    if module not in sys.modules:
        remember(module)
    imported = import_module(module)
    names = [*filter(None, os.environ.get(USED, "").split(","))]
    if module not in names:
        os.environ[USED] = ",".join([*names, module])
    return imported


def use_named() -> None:
    """Import the modules that ``FEDLIB_OWN`` names.

    Raises
    ------
    SettingError
        One of them is not on the path.
    """
    for module in filter(None, os.environ.get(USED, "").split(",")):
        try:
            use(module)
        except ModuleNotFoundError as error:
            raise SettingError(f"{USED}: got {module!r}: {error}") from error


def _refuse(argument: str, name: str, taken: bool) -> None:
    """Refuse a name that is no name, or that something else has.

    Raises
    ------
    ValueError
        Naming the argument and what came.
    """
    if not (name.isidentifier() and name.islower()):
        raise ValueError(f"{argument}: got {name!r}, expected a-z, 0-9 and _")
    if taken:
        raise ValueError(f"{argument}: got {name!r}, which is taken; choose another")


def add_method(name: str, title: str, module: str) -> None:
    """Add a method: from here on it is known by its name, like any other.

    Parameters
    ----------
    name, title : str
        What settings call it, and how it is printed.
    module : str
        Dotted name of the module whose ``METHOD`` it is. It need not be imported yet.

    Raises
    ------
    ValueError
        Another method has the name.
    """
    line = (title, module)
    _refuse("name", name, registry.METHODS.get(name, line)[1] != module)
    registry.METHODS[name] = line


def add_net(name: str, build: Callable[[Shape, int], Parts]) -> None:
    """Add a net of raw embeddings, which ``Spec.embedding`` may normalise.

    Parameters
    ----------
    build : function
        Of a module; takes the shape of an image (channels, height, width) and the
        number of classes, and returns low encoder, high encoder and head, made of the
        layers of ``fedlib.core.layers``.

    Raises
    ------
    ValueError
        Another net has the name, or the function has no module that a key can follow.
    """
    if not inspect.isfunction(build) or build.__qualname__ != build.__name__:
        raise ValueError(f"build: got {build!r}, expected a function of a module")
    if build.__module__ == "__main__":
        raise ValueError(
            f"build: got {build.__name__} of a notebook or script, expected one of a "
            "module: workers import it, and the keys of its runs follow it"
        )
    there = nets.NETS.get(name)
    taken = there is not None and (
        not inspect.isfunction(there.build) or where(there.build) != where(build)
    )
    _refuse("name", name, taken)
    nets.NETS[name] = nets._Kind(build)


def check_net(net: Net) -> None:
    """Pass one blank image through a net of your own, before anything is trained.

    Raises
    ------
    ValueError
        A layer does not take what it gets, or the logits are not those of the classes.
    """
    build = nets.NETS[net.name].build
    if not inspect.isfunction(build) or build.__module__ == nets.__name__:
        return
    at = ""  # the last layer that was called

    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        nonlocal at
        at = f"{name_of[layer]}, {layer}, got {[*given[0].shape]}: "

    name_of = {m: n for n, m in net.module.named_modules() if not [*m.children()]}
    hooks = [layer.register_forward_pre_hook(note) for layer in name_of]
    head = f"net {net.name}, images of {net.shape}"
    try:
        with torch.no_grad():
            out = net.module.eval()(torch.zeros(1, *net.shape))
    except Exception as error:
        raise ValueError(f"{head}: {at}{error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    if out.logits.shape != (1, net.classes):
        got = f"got logits {[*out.logits.shape]}"
        raise ValueError(f"{head}: {got}, expected [1, {net.classes}]")


def add_scheme(settings: type[SchemeSettings], draw: Callable[..., Partition]) -> None:
    """Add a scheme: settings beside the function that draws it.

    The drawn partition itself is what tells runs apart, so that its code is in no key.

    Parameters
    ----------
    settings : class
        A ``SchemeSettings`` whose field ``scheme`` has the scheme's name as its type
        and default; the other fields are arguments of ``draw``.
    draw : function
        Takes training and test labels, ``clients``, ``seed`` and these arguments;
        ``partitions.common.finished`` makes a partition of indices.

    Raises
    ------
    ValueError
        Another scheme has the name, or there is none.
    """
    field = settings.model_fields.get("scheme")
    name = "" if field is None else str(field.default)
    there = SCHEMES.get(name)
    _refuse("scheme", name, there is not None and where(there) != where(settings))
    SCHEMES[name], DRAWS[name] = settings, draw
    known = Spec.model_fields["partition"]
    known.annotation = known.annotation | settings  # type: ignore[operator]
    Spec.model_rebuild(force=True)
