"""What a reader of an artefact's numbers must know, by kind."""

from typing import Literal, NamedTuple, get_args

Kind = Literal["reduced", "not_paper_data", "remark"]


class Note(NamedTuple):
    """One sentence, and what it is about."""

    kind: Kind  # a cut budget, data that the paper does not have, or anything else
    text: str


def record(note: "Note | str") -> dict[str, str]:
    """Return a note as JSON holds it; plain text is a remark.

    Raises
    ------
    ValueError
        An unknown kind.
    """
    kind, text = ("remark", note) if isinstance(note, str) else note
    if kind not in get_args(Kind):
        raise ValueError(f"notes: got kind {kind!r}, expected one of {get_args(Kind)}")
    return {"kind": kind, "text": text}
