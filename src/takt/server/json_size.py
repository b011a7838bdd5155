"""How much a JSON text holds, found before it is parsed: a parser lets nobody run meanwhile."""

from __future__ import annotations

MAX_VALUES = 2**20
"""Values of a body: a batch of prompts as token ids has one per token."""

MAX_MEMBERS = 2**17
"""Objects, lists and the members of objects: each costs a parser ten times a number or more."""


def exceeds_limits(body: bytes) -> bool:
    """Whether a JSON text holds too much for the event loop to be without its interpreter.

    16 MiB of text are parsed in 50 ms; 16 MiB of empty lists take seconds, all in one call.
    """
    if not _exceeds(body):
        return False
    # Some of what was counted may stand inside of strings: look at what stands between them.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * MAX_VALUES:
        return True
    return _exceeds(b"".join(plain.split(b'"')[::2]))


def _exceeds(text: bytes) -> bool:
    num_members = text.count(b"[") + text.count(b"{") + text.count(b":")
    return num_members > MAX_MEMBERS or text.count(b",") > MAX_VALUES
