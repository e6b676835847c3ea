"""The last rung: which text, in which language."""

from typing import Any

import pytest

from fallback_models.answer import Asked
from fallback_models.canned import CannedText, accepted


async def test_says_what_it_was_told_and_that_it_is_canned() -> None:
    answer = await CannedText("Later, please.").answer(Asked("chat", "chat", {}, languages="de"))
    told = (answer.text, answer.model, answer.finish_reason, answer.age_s)
    assert told == ("Later, please.", "canned", "stop", 0.0)


TEXTS = {"de": "Später.", "pt-br": "Mais tarde.", "en": "Later!", "zh": "稍后"}


@pytest.mark.parametrize(
    ("languages", "body", "text"),
    [
        ("", {}, "Later."),
        ("de", {}, "Später."),
        ("de-CH, en;q=0.8", {}, "Später."),
        ("fr, de;q=0.5, en;q=0.9", {}, "Later!"),
        ("fr;q=0.9, it;q=0.8", {}, "Later."),
        ("de;q=0, en;q=0.1", {}, "Later!"),
        ("*", {}, "Later."),
        ("pt", {}, "Later."),
        ("pt-BR", {}, "Mais tarde."),
        ("zh-Hant-TW", {}, "稍后"),
        # the field comes first, where it names a language that there is
        ("en", {"metadata": {"language": "de_AT"}}, "Später."),
        ("en", {"metadata": {"language": "fr"}}, "Later!"),
        ("en", {"metadata": {"language": 7}}, "Later!"),
        ("en", {"metadata": "de"}, "Later!"),
    ],
)
async def test_languages(languages: str, body: dict[str, Any], text: str) -> None:
    canned = CannedText("Later.", TEXTS, "metadata.language")
    answer = await canned.answer(Asked("chat", "chat", body, languages=languages))
    assert answer.text == text


@pytest.mark.parametrize(
    ("header", "best_first"),
    [
        ("en;q=0.5,de,fr;q=0.9", ["de", "fr", "en"]),
        ("a;q=x, b;q=nan, c;level=1, ,;", ["c"]),
        (";;;,,,q=1", ["q=1"]),
        ("x," * 500, ["x"] * 32),
    ],
)
def test_any_header(header: str, best_first: list[str]) -> None:
    assert accepted(header) == best_first
