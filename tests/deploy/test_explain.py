"""What `graceway check` says of a valid config: the ladder, capacity, and knobs that never apply."""

from pathlib import Path

import pytest

from deploy.config import load_config
from deploy.explain import explain

BASE = """\
models:
  chat:
    tiers:
      - name: primary
        backend: openai
        served_model: m
        replicas: [{url: "http://h:1"}, {url: "http://h:2"}]
        slots: 8
        slo: {ttft_s: 1.0, itl_s: 0.2}
      - {name: small, backend: vllm, model: org/small, slots: 4, quality: 0.7, scale: {min: 2}, gpu: 1}
      - {name: cached, backend: cache, quality: 0.5}
      - {name: canned, backend: canned, text: "Later."}
"""


def explained(tmp_path: Path, text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    explanation = explain(load_config(path, {}))
    return explanation.ladder, explanation.warnings


def test_the_ladder_and_its_capacity(tmp_path: Path) -> None:
    ladder, warnings = explained(tmp_path, BASE)
    assert ladder == (
        "chat: 4 tiers, best first; 24 at once",
        "  1. primary: m on servers that already run; 2 replicas × 8 slots = 16 at once; "
        "promises first token in 1 s, then one each 0.2 s; quality 1",
        "  2. small: org/small on vllm (1 GPU each); 2 replicas × 4 slots = 8 at once; "
        "promises first token in 5 s, then one each 1 s; quality 0.7",
        "  3. cached: complete answers given before to the same request, at most 3600 s old; quality 0.5",
        "  4. canned: always the text 'Later.'; quality 0",
    )
    assert warnings == ()


def test_standbys_add_no_capacity(tmp_path: Path) -> None:
    text = BASE.replace("scale: {min: 2}", "scale: {min: 2, standbys: 1}")
    ladder, _ = explained(tmp_path, text.replace("slots: 8", "slots: 8\n        in_rotation: 1"))
    assert ladder[0] == "chat: 4 tiers, best first; 16 at once"
    assert "1 replica (1 more stand by) × 8 slots = 8 at once" in ladder[1]
    assert "2 replicas (1 more stand by) × 4 slots = 8 at once" in ladder[2]


def test_servers_without_slots_are_not_counted(tmp_path: Path) -> None:
    ladder, _ = explained(tmp_path, BASE.replace("        slots: 8\n", ""))
    assert ladder[0] == "chat: 4 tiers, best first"
    assert "2 replicas, as many at once as aimd learns" in ladder[1]


def test_what_a_lower_tier_leaves_out(tmp_path: Path) -> None:
    given = "gives_up: {max_tokens: 64, n: 1, logprobs: true, context: true}"
    ladder, warnings = explained(tmp_path, BASE.replace("gpu: 1}", f"gpu: 1, max_model_len: 4096, {given}}}"))
    assert ladder[2].endswith(
        "leaves out answers beyond 64 tokens, choices beyond 1, log probabilities, "
        "the oldest turns beyond its window (4096 tokens); quality 0.7"
    )
    assert warnings == ()


def test_what_answers_without_replicas(tmp_path: Path) -> None:
    near = 'near: {url: "http://h:9", served_model: minilm, min_similarity: 0.9}'
    text = BASE.replace("cache, quality", f"cache, {near}, quality").replace(
        "Later.", 'Later.", texts: {de: "Bald."}, language_field: "lang'
    )
    ladder, warnings = explained(tmp_path, text)
    assert ladder[3].endswith(
        "the same request or one alike (cosine ≥ 0.9 by minilm), at most 3600 s old; quality 0.5"
    )
    assert ladder[4].endswith("always the text 'Later.', or one in de; quality 0")
    assert warnings == ()


PAID = (
    '      - {name: far, backend: openai, served_model: m, replicas: [{url: "https://h"}], slots: 1, quality: 0, '
    "price: {prompt: 0.15, answer: 0.6}"
)


def test_what_a_paid_tier_costs(tmp_path: Path) -> None:
    text = BASE.split("      - {name: cached")[0] + PAID
    ladder, warnings = explained(tmp_path, text + ", budget: {amount: 20, per: hour}}\n")
    assert (
        "costs 0.15 and 0.6 for a million tokens of prompt and answer, at most 20 per hour; quality 0"
        in ladder[3]
    )
    assert warnings == ()
    ladder, warnings = explained(tmp_path, text + "}\n")
    assert "without a bound" in ladder[3]
    assert warnings == ("chat/far may cost any amount. Add `budget: {amount: …, per: day}`",)


def test_what_sheddable_requests_are_promised(tmp_path: Path) -> None:
    ladder, _ = explained(tmp_path, BASE.replace("ttft_s: 1.0,", "ttft_s: 1.0, sheddable_ttft_s: 20,"))
    assert "promises first token in 1 s (20 s if sheddable), then one each 0.2 s" in ladder[1]


def test_what_a_model_is_told_about_users(tmp_path: Path) -> None:
    items = (
        "[{name: a, level: critical}, {name: b, default: x}, {name: c}, {name: d, level: useful}, "
        "{name: e, level: optional}]"
    )
    text = BASE.replace("  chat:\n", f"  chat:\n    features: {{items: {items}}}\n")
    ladder, warnings = explained(tmp_path, 'state_store: {url: "redis://h:6379"}\n' + text)
    assert ladder[1] == (
        "  told about the user, in 0.1 s: a (refused without), b (else a default), "
        "c (else left out, as it has no default), d (else what it last was), e (else left out)"
    )
    assert warnings == ()
    idle = items.replace("critical}", "critical, default: y, max_age_s: 5}")
    assert explained(tmp_path, text.replace(items, idle))[1] == (
        "chat: 'default' of feature a never applies: it is critical. Remove it",
        "chat: 'max_age_s' of feature a never applies: it is critical. Remove it",
        "chat: nobody but this system writes into its state store: features need a redis:// of your own",
    )


IDLE = {
    "two caches": (
        "      - {name: more, backend: cache, quality: 0}\n",
        "chat/cached remembers nothing: answers go into more, the lowest cache. Keep one of them",
    ),
    "window of nothing that fits": (
        '      - {name: x, backend: openai, quality: 0, served_model: m, replicas: [{url: "http://h:3"}], '
        "max_model_len: 512}\n",
        "chat/x: 'max_model_len' never applies without 'gives_up: {context: true}'. Add that, or remove it",
    ),
    "below canned": (
        "      - {name: last, backend: cache, quality: 0.0}\n",
        "chat/last is never reached: canned above it always answers. Move canned to the end",
    ),
    "worse above better": (
        "      - {name: again, backend: canned, quality: 0.9}\n",
        "chat/again (quality 0.9) is below canned (0): tiers go from best to worst. "
        "Swap them, or correct the qualities",
    ),
    "replicas on a managed tier": (
        '      - {name: x, backend: vllm, model: m, quality: 0, replicas: [{url: "http://h:3"}]}\n',
        "chat/x: 'replicas' never applies to backend vllm. Remove it",
    ),
    "age without a cache": (
        "      - {name: x, backend: canned, max_age_s: 5}\n",
        "chat/x: 'max_age_s' never applies to backend canned. Remove it",
    ),
    "text without canned": (
        "      - {name: x, backend: cache, quality: 0, text: hello}\n",
        "chat/x: 'text' never applies to backend cache. Remove it",
    ),
    "promise of a text": (
        "      - {name: x, backend: canned, slo: {ttft_s: 1}}\n",
        "chat/x: 'slo' never applies to backend canned. Remove it",
    ),
    "slots of a cache": (
        "      - {name: x, backend: cache, quality: 0, slots: 4}\n",
        "chat/x: 'slots' never applies to backend cache. Remove it",
    ),
    "gpu of a server that runs": (
        '      - {name: x, backend: openai, quality: 0, served_model: m, replicas: [{url: "http://h:3"}], gpu: 1}\n',
        "chat/x: 'gpu' never applies to backend openai. Remove it",
    ),
    "size of blocks that nobody keeps": (
        "      - {name: x, backend: vllm, model: m, quality: 0, kv: {budget_bytes: 5000000}}\n",
        "chat/x: 'kv.budget_bytes' never applies: its strategy is recompute. Remove it",
    ),
    "blocks of servers that run": (
        '      - {name: x, backend: openai, quality: 0, served_model: m, replicas: [{url: "http://h:3"}], '
        "kv: {strategy: replicate, compression: int8}}\n",
        "chat/x: 'kv.compression' never applies: servers that already run have it on their own command line. Remove it",
    ),
    "limit beside slots": (
        "      - {name: x, backend: openai, quality: 0, served_model: m, slots: 4, limit: gradient, "
        'replicas: [{url: "http://h:3"}]}\n',
        "chat/x: 'limit' never applies: there are 4 slots. Remove one of the two",
    ),
    "weight of the only tenant": (
        "keys: [{name: a, sha256: '" + "0" * 64 + "', weight: 2.0}]\n",
        "keys: 'weight' of a never applies: there is no other tenant. Remove it",
    ),
    "two quotas of one tenant": (
        "keys: [{name: a, sha256: '" + "0" * 64 + "', requests_per_minute: 5}, "
        "{name: b, tenant: a, sha256: '" + "1" * 64 + "'}]\n",
        "keys: 'requests_per_minute' of a and b differ, but both are a's, which has one. Write the same for both",
    ),
    "budget without retries": (
        "retry: {max_attempts: 1, budget_share: 0.5}\n",
        "retry.budget_… never applies: max_attempts is 1. Raise max_attempts, or remove the budget",
    ),
    "zone of nobody": (
        "routing: {zone: mars}\n",
        "routing.zone 'mars' never applies: no replica is there. Name one that has",
    ),
    "memory for several processes": (
        "state_store: {url: memory}\n",
        "state_store 'memory' is not shared between processes: `graceway up` needs embedded or redis:// "
        "for the tiers whose replicas it starts",
    ),
}


@pytest.mark.parametrize("case", IDLE)
def test_what_never_applies_is_said(case: str, tmp_path: Path) -> None:
    text, warning = IDLE[case]
    assert warning in explained(tmp_path, BASE + text)[1]


def test_sections_without_replicas_never_apply(tmp_path: Path) -> None:
    text = "models: {chat: {tiers: [{backend: canned}]}}\nhealth: {interval_s: 1}\nretry: {max_attempts: 2}\n"
    assert explained(tmp_path, text)[1] == (
        "'health' never applies: no tier has replicas. Remove it",
        "'retry' never applies: no tier has replicas. Remove it",
    )


def test_what_becomes_of_kv_blocks(tmp_path: Path) -> None:
    ladder, warnings = explained(tmp_path, BASE.replace("gpu: 1}", "gpu: 1, kv: {strategy: replicate}}"))
    assert "; KV blocks are stored as they fill; quality 0.7" in ladder[2]
    assert warnings == ()
    _, warnings = explained(
        tmp_path, BASE.replace("backend: cache,", "backend: cache, kv: {strategy: sync},")
    )
    assert warnings == ("chat/cached: 'kv' never applies to backend cache. Remove it",)
