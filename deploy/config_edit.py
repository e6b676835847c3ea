"""Changes values of a tier in a config's text, and nothing else: comments, order and line breaks stay as they are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode


class NoSuchTier(ValueError):  # noqa: N818 - said to the operator as it is
    """The file has no tier of that name that could be changed."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Replaces `text[begins:ends]`."""

    begins: int
    ends: int
    value: str


def with_tier_values(text: str, model: str, tier: int, values: Mapping[str, str]) -> str:
    """The text with these keys of a model's tier (by its place in the list) set; values are YAML as it is written.

    Raises:
        NoSuchTier
    """
    node = _tier_node(text, model, tier)
    edits: list[_Edit] = []
    new: list[str] = []
    for key, value in values.items():
        found = next((v for k, v in node.value if k.value == key), None)
        if found is None:
            new.append(f"{key}: {value}")
        elif not isinstance(found, ScalarNode):
            raise NoSuchTier(f"{model}/{tier + 1}: '{key}' is no single value")
        else:
            edits.append(_Edit(found.start_mark.index, found.end_mark.index, value))
    edits += _insertions(node, values, new)
    for edit in sorted(edits, key=lambda e: e.begins, reverse=True):
        text = text[: edit.begins] + edit.value + text[edit.ends :]
    return text


def _insertions(node: MappingNode, values: Mapping[str, str], new: list[str]) -> Iterator[_Edit]:
    """In front of a key that is changed as well, or of the first: nothing comes between a value and its comment."""
    if not new:
        return
    keys = [k.value for k, _ in node.value]
    known = [n for n, key in enumerate(keys) if key in values]
    place = known[0] if known else 0
    at = node.value[place][0].start_mark
    joint = ", " if node.flow_style else "\n" + " " * at.column
    yield _Edit(at.index, at.index, "".join(part + joint for part in new))


def _tier_node(text: str, model: str, tier: int) -> MappingNode:
    root = YAML(typ="rt", pure=True).compose(text)
    tiers = _child(_child(_child(root, "models"), model), "tiers")
    if not isinstance(tiers, SequenceNode) or tier >= len(tiers.value):
        raise NoSuchTier(f"{model} has no tier {tier + 1} in this file")
    node = tiers.value[tier]
    if not isinstance(node, MappingNode) or not node.value:
        raise NoSuchTier(f"{model}: its tier {tier + 1} is no mapping")
    return node


def _child(node: Node | None, key: str) -> Node | None:
    if not isinstance(node, MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
