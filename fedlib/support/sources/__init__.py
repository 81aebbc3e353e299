"""Which code a result depends on: the definitions that it uses, hashed by content.

A definition is what a module binds at its top level: a function, a class, a constant.
``code`` begins with some and follows the names in them, through every form of import,
to all that they use. What counts is a definition's syntax without comments and
docstrings, and which definitions it refers to; in which file those stand does not. A
table of which one entry is chosen counts with that entry.

It errs on the side of too much: a module used as a value (``getattr(module, name)``) or
imported with ``*`` counts as a whole, and so does what imports do besides defining
names. What cannot be followed is refused by name. Code of others (the standard library
and what is installed) is not followed.

The code is that which this process imported: ``remember`` keeps it, and a file that has
changed since is refused, because nobody knows which of the two computes.

One file a step: ``syntax``, ``files`` as they were imported, the top level of
``modules``, what ``names`` stand for, what ``definitions`` say, and the ``walk`` along
all that they use.
"""

from fedlib.support.sources.definitions import used_by
from fedlib.support.sources.files import SourceError, home
from fedlib.support.sources.modules import NOT_FOLLOWED, Place, remember, where
from fedlib.support.sources.walk import Code, code

__all__ = [
    "NOT_FOLLOWED",
    "Code",
    "Place",
    "SourceError",
    "code",
    "home",
    "remember",
    "used_by",
    "where",
]
