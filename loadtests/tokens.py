"""The toy language of the simulated engine: its tokenizer, its chat template and what it says next.

Text and ids map one to one on everything the engine generates, and the next token is a pure function of all
the ids before it. So whoever continues from a prompt plus any part of an answer, as ids or as text, gets
exactly what an undisturbed run would have given, and a client can verify an answer token by token.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

Message = Mapping[str, object]
Prompt = str | Sequence[int] | Sequence[Message]

BYTES = 256
END_OF_TEXT = 256
END_OF_TURN = 257
ROLES = {"system": 258, "developer": 258, "user": 259, "assistant": 260, "tool": 261}
SENTENCE_END = 262
COMMA = ord(",")
MAX_ANSWER_TOKENS = 4096

_IDEOGRAPHS = "日本語文字水火木金土山川空海風雨雪花鳥月"
# The first three bytes of many emoji. The engine says such a character in two tokens, as real tokenizers do.
_LEADS = tuple(bytes((0xF0, 0x9F, third)) for third in (0x98, 0x9A, 0x8C, 0x8D, 0x90, 0xA6))
_LETTERS = "abcdefghijklmnopqrstuvwxyzéüñ"


def _words() -> tuple[str, ...]:
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvwyz" for vowel in "aeiou"]
    words = [first + second for first in syllables for second in syllables][:4096]
    accents = str.maketrans("eun", "éüñ")
    return tuple(word.translate(accents) if number % 16 == 5 else word for number, word in enumerate(words))


def _vocabulary() -> tuple[bytes, ...]:
    single_bytes = [bytes((value,)) for value in range(BYTES)]
    specials = [b""] * (SENTENCE_END - END_OF_TEXT)
    ideographs = [character.encode() for character in _IDEOGRAPHS]
    words = [f" {word}".encode() for word in _words()]
    return (*single_bytes, *specials, b".\n", *_LEADS, *ideographs, *words)


VOCABULARY = _vocabulary()
FIRST_LEAD = SENTENCE_END + 1
FIRST_IDEOGRAPH = FIRST_LEAD + len(_LEADS)
FIRST_WORD = FIRST_IDEOGRAPH + len(_IDEOGRAPHS)
WORDS = len(VOCABULARY) - FIRST_WORD
LEADS = range(FIRST_LEAD, FIRST_IDEOGRAPH)
PACKED_IDS = tuple(token_id.to_bytes(4, "little") for token_id in range(len(VOCABULARY)))

_ID_OF = {piece: token_id for token_id, piece in enumerate(VOCABULARY) if token_id >= SENTENCE_END}
_PIECES = re.compile(rf" [{_LETTERS}]+|\.\n|[{_IDEOGRAPHS}]|[^ .{_IDEOGRAPHS}]+|.", re.DOTALL)


def encode(text: str) -> list[int]:
    """The ids of a text. Special tokens have no text and never come out of here."""
    ids: list[int] = []
    for piece in _PIECES.findall(text):
        raw = piece.encode("utf-8", "surrogatepass")
        known = _ID_OF.get(raw)
        if known is not None:
            ids.append(known)
        else:
            ids.extend(_encode_bytes(raw))
    return ids


def _encode_bytes(raw: bytes) -> Iterable[int]:
    """Bytes as themselves, except that the lead of a known emoji is one token."""
    if 0xF0 not in raw:
        return raw
    ids: list[int] = []
    position = 0
    while position < len(raw):
        lead = _ID_OF.get(raw[position : position + 3]) if raw[position] == 0xF0 else None
        ids.append(raw[position] if lead is None else lead)
        position += 1 if lead is None else 3
    return ids


def decode(ids: Iterable[int]) -> str:
    """The text of ids; a character that is only begun at the end is left out, as vLLM leaves it out."""
    raw = b"".join([VOCABULARY[token_id] for token_id in ids])
    tail = raw[-3:].rfind(0xF0)
    if tail >= 0:
        raw = raw[: len(raw) - (min(3, len(raw)) - tail)]
    return raw.decode("utf-8", "replace")


def detokenize(ids: Iterable[int]) -> str:
    """The text of ids as a tokenizer alone gives it: a character that is only begun is a replacement character."""
    return b"".join([VOCABULARY[token_id] for token_id in ids]).decode("utf-8", "replace")


def render_chat(
    messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final_message: bool = False
) -> list[int]:
    """The chat template: role, content, end of turn for each message, then the assistant's role."""
    ids: list[int] = []
    for message in messages:
        ids.append(ROLES[str(message["role"])])
        ids.extend(encode(content_text(message.get("content"))))
        ids.append(END_OF_TURN)
    if continue_final_message:
        ids.pop()
    if add_generation_prompt:
        ids.append(ROLES["assistant"])
    return ids


def content_text(content: object) -> str:
    """A message's content as text: a string, a list of text parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TypeError("content must be a string or a list of parts")
    return "\n".join(str(part["text"]) for part in content)


def prompt_ids(prompt: Prompt) -> list[int]:
    """The ids that a prompt (text, ids) or a conversation (messages) puts before the answer."""
    if isinstance(prompt, str):
        return encode(prompt)
    if prompt and isinstance(prompt[0], Mapping):
        return render_chat([item for item in prompt if isinstance(item, Mapping)])
    return [item for item in prompt if isinstance(item, int)]


def state_after(ids: Iterable[int], state: int = 0) -> int:
    """The language's whole memory, carried from `state` over `ids`: 32 bits that a lost token changes."""
    return crc32(b"".join([PACKED_IDS[token_id] for token_id in ids]), state)


def salted(state: int, index: int) -> int:
    """The state of the n-th choice for one prompt; the first one is the prompt's own."""
    return state ^ (index * 0x9E3779B1 & 0xFFFFFFFF)


def next_token(state: int, last: int, may_end: bool) -> int:
    """What follows: mostly a word, at times punctuation or half an emoji; the end only after a sentence."""
    mixed = state * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    kind = mixed >> 56
    if FIRST_LEAD <= last < FIRST_IDEOGRAPH:
        return 0x80 | (mixed >> 40 & 0x3F)
    if kind >= 48:
        return FIRST_WORD + (mixed >> 36) % WORDS
    if last == SENTENCE_END and may_end:
        return END_OF_TEXT
    if kind < 16:
        return SENTENCE_END
    if kind < 28:
        return COMMA
    if kind < 38:
        return FIRST_IDEOGRAPH + (mixed >> 36) % len(_IDEOGRAPHS)
    return FIRST_LEAD + (mixed >> 36) % len(_LEADS)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole, undisturbed answer; `ids` end with END_OF_TEXT where `finish_reason` is "stop"."""

    text: str
    ids: tuple[int, ...]
    finish_reason: str


def expected_answer(
    prompt: Prompt,
    n_tokens: int = MAX_ANSWER_TOKENS,
    *,
    ignore_eos: bool = False,
    min_tokens: int = 0,
    index: int = 0,
) -> Answer:
    """What the engine answers to a prompt or conversation, up to `n_tokens` tokens, without stop strings."""
    before = prompt_ids(prompt)
    state = salted(state_after(before), index)
    last = before[-1] if before else END_OF_TEXT
    ids: list[int] = []
    while not ids or (len(ids) < n_tokens and last != END_OF_TEXT):
        last = next_token(state, last, not ignore_eos and len(ids) >= min_tokens)
        state = crc32(PACKED_IDS[last], state)
        ids.append(last)
    return Answer(decode(ids), tuple(ids), "stop" if last == END_OF_TEXT else "length")
