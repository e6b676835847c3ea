"""Text that a replica generated and held back when its stream broke: what a continuation must not lose or say twice."""

from gateway.detokenize import detokenize
from gateway.journal import Journal
from gateway.replica import Replica

BYTES_OF_A_CHARACTER = 4
"""In UTF-8, and so the most tokens that can stand for a part of one."""


async def held_text(journal: Journal, replica: Replica) -> str | None:
    """Text that the replica generated but held back, as it might have become a stop string; None when unknown.

    The journal keeps the ids up to the end of a character.
    """
    if journal.is_end_known or not journal.ids:
        return ""
    for count in range(len(journal.ids), max(0, len(journal.ids) - BYTES_OF_A_CHARACTER), -1):
        text = await detokenize(replica, journal.ids[:count])
        if text is not None and not text.endswith("\N{REPLACEMENT CHARACTER}"):
            said = journal.said
            if not text.startswith(said):
                return None
            held = text[len(said) :]
            if held and not journal.request.stops:
                return None
            journal.keep_ids(count)
            return held
    return None
