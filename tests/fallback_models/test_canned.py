"""The last rung."""

from fallback_models.canned import CannedText


async def test_says_what_it_was_told_and_that_it_is_canned() -> None:
    answer = await CannedText("Later, please.").answer("chat", "chat", {})
    assert (answer.text, answer.model, answer.finish_reason, answer.age_s) == (
        "Later, please.",
        "canned",
        "stop",
        0.0,
    )
