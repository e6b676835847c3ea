"""A value in a config is changed, and nothing else."""

import pytest

from deploy.config_edit import NoSuchTier, with_tier_values

VALUES = {"quality": "0.62", "quality_as_of": '"2030-01-02"'}
BLOCK = """# the ladder
models:
  chat:
    tiers:
      - name: a     # best
        quality: 1.0   # a guess
        backend: canned
      - name: b
        backend: canned   # last
"""
FLOW = (
    "models: {chat: {tiers: [{name: a, backend: canned, quality: 1}, {name: b, backend: canned}]}}  # all\n"
)


@pytest.mark.parametrize(
    ("text", "tier", "old", "new"),
    [
        (BLOCK, 0, "        quality: 1.0   # a guess",
         '        quality_as_of: "2030-01-02"\n        quality: 0.62   # a guess'),
        (BLOCK, 1, "      - name: b",
         '      - quality: 0.62\n        quality_as_of: "2030-01-02"\n        name: b'),
        (FLOW, 0, "quality: 1}", 'quality_as_of: "2030-01-02", quality: 0.62}'),
        (FLOW, 1, "{name: b", '{quality: 0.62, quality_as_of: "2030-01-02", name: b'),
    ],
)  # fmt: skip
def test_what_is_changed(text: str, tier: int, old: str, new: str) -> None:
    once = with_tier_values(text, "chat", tier, VALUES)
    assert once == text.replace(old, new)
    assert with_tier_values(once, "chat", tier, VALUES) == once
    assert with_tier_values(once, "chat", tier, {"quality": "1.0"}) == once.replace("0.62", "1.0")


@pytest.mark.parametrize(
    ("text", "model", "tier"),
    [(BLOCK, "other", 0), (BLOCK, "chat", 2), ("", "chat", 0), ("models: {chat: {tiers: [x]}}", "chat", 0),
     ("models: {chat: {tiers: [{quality: [1]}]}}", "chat", 0)],
)  # fmt: skip
def test_what_can_not_be_changed(text: str, model: str, tier: int) -> None:
    with pytest.raises(NoSuchTier, match=r"\w"):
        with_tier_values(text, model, tier, VALUES)
