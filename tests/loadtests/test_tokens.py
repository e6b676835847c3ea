"""The toy language: one to one, and the same whichever way one comes to a token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.tokens import (
    END_OF_TEXT,
    LEADS,
    content_text,
    decode,
    encode,
    expected_answer,
    prompt_ids,
    render_chat,
)

QUESTIONS = [[{"role": "user", "content": f"question {number}"}] for number in range(200)]


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_any_text_survives_its_ids(text: str) -> None:
    assert decode(encode(text)) == text


def test_generated_ids_survive_their_text() -> None:
    for messages in QUESTIONS:
        answer = expected_answer(messages, 200, ignore_eos=True)
        ids = list(answer.ids)
        if ids[-1] in LEADS:
            ids.pop()
        assert encode(answer.text) == ids


@pytest.mark.parametrize("cut", [1, 2, 7, 30, 59])
def test_a_continuation_is_the_undisturbed_answer(cut: int) -> None:
    for messages in QUESTIONS:
        whole = expected_answer(messages, 60)
        seen = whole.ids[:cut]
        if len(seen) < len(whole.ids):
            rest = expected_answer(prompt_ids(messages) + list(seen), 60 - len(seen))
            assert seen + rest.ids == whole.ids


def test_a_lost_a_doubled_and_a_swapped_token_change_all_that_follows() -> None:
    messages = QUESTIONS[0]
    before = prompt_ids(messages)
    ids = list(expected_answer(messages, 20, ignore_eos=True).ids)
    lost, doubled = ids[:9] + ids[10:], [*ids[:10], ids[9], *ids[10:]]
    swapped = [*ids[:8], ids[9], ids[8], *ids[10:]]
    right = expected_answer(before + ids, 20, ignore_eos=True).ids
    for wrong in (lost, doubled, swapped):
        other = expected_answer(before + wrong, 20, ignore_eos=True).ids
        assert sum(a == b for a, b in zip(right, other, strict=True)) <= 2


def test_answers_hold_words_half_characters_and_an_end() -> None:
    answers = [expected_answer(messages) for messages in QUESTIONS]
    assert all(answer.finish_reason == "stop" and answer.ids[-1] == END_OF_TEXT for answer in answers)
    assert all(len(answer.ids) > 1 for answer in answers)
    assert any(token_id in LEADS for answer in answers for token_id in answer.ids)
    assert any(ord(letter) > 0xFFFF for answer in answers for letter in answer.text)
    assert any("é" in answer.text for answer in answers)


def test_a_length_is_kept_only_without_an_end() -> None:
    answer = expected_answer(QUESTIONS[1], 500, ignore_eos=True)
    assert len(answer.ids) == 500
    assert answer.finish_reason == "length"
    assert END_OF_TEXT not in answer.ids
    assert len(expected_answer(QUESTIONS[1], 500, min_tokens=490).ids) >= 490


def test_choices_differ() -> None:
    first, second = (expected_answer("x", 10, ignore_eos=True, index=index) for index in (0, 1))
    assert first.text != second.text


def test_a_character_begun_at_the_end_is_left_out() -> None:
    assert decode([*encode("a🙂b🙂")][:-1]) == "a🙂b"


def test_a_conversation_left_open_goes_on_in_the_assistants_words() -> None:
    question = {"role": "user", "content": "q"}
    said = {"role": "assistant", "content": " bado"}
    opened = render_chat([question, said], add_generation_prompt=False, continue_final_message=True)
    assert opened == render_chat([question]) + encode(" bado")


def test_content_comes_as_text_or_as_parts() -> None:
    assert content_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]) == "a\nb"
    assert content_text(None) == ""
