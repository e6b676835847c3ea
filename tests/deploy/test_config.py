"""Configs that are wrong, each with the exact line and mend; and what a right one comes to mean."""

from pathlib import Path

import pytest

from deploy.config import CANNED_TEXT, Config, ConfigError, load_config, to_gateway_spec

GOOD = """\
server: {host: 127.0.0.1, port: 8100}
state_store: {url: memory}
models:
  chat:
    tiers:
      - name: primary
        backend: openai
        served_model: m
        replicas:
          - {url: "http://127.0.0.1:9311", zone: a}
        slots: 8
      - {name: small, backend: vllm, model: models/small, slots: 4, quality: 0.7, scale: {min: 2}}
      - {name: cached, backend: cache, quality: 0.5}
      - {backend: canned}
"""
STORES = "Write embedded, memory, redis://HOST:PORT, rediss://, unix://, redis+sentinel:// or redis+cluster:// (docs/config.md)"


def tier(text: str) -> str:
    """A config around one tier, whose text begins on line 4."""
    return "models:\n  chat:\n    tiers:\n      - " + text + "\n"


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None) -> Config:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return load_config(path, environment or {})


def faults(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


BAD = {
    "more for who counts least": (
        tier("{backend: vllm, model: m, slo: {ttft_s: 2, sheddable_ttft_s: 1}}"),
        "c.yaml:4: sheddable requests are promised more (1 s) than all others (2 s). Write 2 or more, or remove it",
    ),
    "a budget of nothing": (
        tier('{backend: openai, served_model: m, replicas: [{url: "http://h:1"}], budget: {amount: 5}}'),
        "c.yaml:4: a budget without a price bounds nothing. "
        "Add `price: {prompt: …, answer: …}`, for a million tokens each",
    ),
    "certificates that are none": (
        tier('{backend: openai, served_model: m, replicas: [{url: "https://h:1"}], ca_file: /nowhere.pem}'),
        "c.yaml:4: '/nowhere.pem' is not there. Name a file in PEM form",
    ),
    "a tokenizer that is none": (
        tier('{backend: openai, served_model: m, replicas: [{url: "http://h:1"}], tokenizer: /nowhere}'),
        "c.yaml:4: there is no tokenizer.json at '/nowhere'. Name the model's folder, or its tokenizer.json",
    ),
    "embeddings from nowhere": (
        tier("{backend: cache, near: {url: h, served_model: e}}"),
        "c.yaml:4: 'h' is no address of a server. Write http://HOST:PORT",
    ),
    "an empty text in a language": (
        tier("{backend: canned, texts: {de: ' '}}"),
        "c.yaml:4: the text is empty. Write what clients are told, or remove `de`",
    ),
    "empty": ("", "c.yaml: the file is empty. Write at least `models:` with one model and its `tiers:`"),
    "only comments": (
        "# nothing\n",
        "c.yaml: the file is empty. Write at least `models:` with one model and its `tiers:`",
    ),
    "not a mapping": (
        "- a\n- b\n",
        "c.yaml:1: the file is not a mapping of keys to values. Write `models:` with one model and its `tiers:`",
    ),
    "a word": (
        "models\n",
        "c.yaml:1: the file is not a mapping of keys to values. Write `models:` with one model and its `tiers:`",
    ),
    "tab": ("models:\n\tchat: {}\n", "c.yaml:2: a tab stands in the indentation. Indent with spaces"),
    "open bracket": (
        "models: {chat: {tiers: [\n",
        "c.yaml:1: this is not YAML: expected the node content, but found '<stream end>'. "
        "Close the bracket, or check the indentation",
    ),
    "colon in text": (
        tier("{backend: canned}").replace("{backend: canned}", "text: a: b"),
        "c.yaml:4: this is not YAML: mapping values are not allowed here. "
        "Quote text that holds a colon, or begin a new line",
    ),
    "alias": (
        "models: *none\n",
        "c.yaml:1: this is not YAML: found undefined alias 'none'. "
        "Define the anchor above, or quote text that begins with *",
    ),
    "two documents": (
        "models: {}\n---\nmodels: {}\n",
        "c.yaml:2: this is not YAML: but found another document. Keep one document in the file, without `---` inside it",
    ),
    "tag": (
        tier("{backend: canned, text: !secret x}"),
        "c.yaml:4: the YAML tag '!secret' means nothing here. Remove the tag; quote text",
    ),
    "models missing": ("server: {}\n", "c.yaml:1: 'models' is missing. Add `models: …`"),
    "models empty": ("server: {}\nmodels: {}\n", "c.yaml:2: 'models' is empty. Add at least one entry"),
    "models null": (
        "server: {}\nmodels:\n",
        "c.yaml:2: 'models' has no value. Write a mapping (`key: value` lines), or remove the key",
    ),
    "no tiers": ("models:\n  chat: {}\n", "c.yaml:2: 'models.chat.tiers' is missing. Add `tiers: …`"),
    "tiers empty": (
        "models:\n  chat:\n    tiers: []\n",
        "c.yaml:3: 'models.chat.tiers' is empty. Add at least one entry",
    ),
    "tiers a mapping": (
        "models:\n  chat:\n    tiers: {backend: canned}\n",
        "c.yaml:3: 'models.chat.tiers' is a mapping. Write a list (`- …` lines, or [a, b])",
    ),
    "no backend": (
        tier("{name: a}"),
        "c.yaml:4: 'models.chat.tiers[0].backend' is missing. Add `backend: …`",
    ),
    "a key that is needed misspelt": (
        "models:\n  chat:\n    tires:\n      - {backend: canned}\n",
        "c.yaml:3: unknown key 'tires' in 'models.chat'. Did you mean 'tiers'?",
    ),
    "the first key misspelt": (
        "model:\n  chat:\n    tiers:\n      - {backend: canned}\n",
        "c.yaml:1: unknown key 'model'. Did you mean 'models'?",
    ),
    "backend misspelt": (
        tier("backend: opnai"),
        "c.yaml:4: 'models.chat.tiers[0].backend' is 'opnai'. "
        "Did you mean 'openai'? Choices: openai, vllm, llamacpp, command, cache, canned",
    ),
    "backend unknown": (
        tier("backend: bedrock"),
        "c.yaml:4: 'models.chat.tiers[0].backend' is 'bedrock'. Write one of openai, vllm, llamacpp, command, cache, canned",
    ),
    "unknown key, near": (
        tier("backend: canned\n        slotz: 3"),
        "c.yaml:5: unknown key 'slotz' in 'models.chat.tiers[0]'. Did you mean 'slots'?",
    ),
    "unknown key, far": (
        "server:\n  zzz: 1\n" + tier("backend: canned"),
        "c.yaml:2: unknown key 'zzz' in 'server'. Known here: gateways, grpc_port, host, port, tls",
    ),
    "unknown key at the top": (
        tier("backend: canned") + "servr: {}\n",
        "c.yaml:5: unknown key 'servr'. Did you mean 'server'?",
    ),
    "unknown key in a nested place": (
        tier("backend: cache\n        slo:\n          ttft: 1"),
        "c.yaml:6: unknown key 'ttft' in 'models.chat.tiers[0].slo'. Did you mean 'ttft_s'?",
    ),
    "merge key": (
        "base: &b {backend: canned}\nmodels:\n  chat:\n    tiers:\n      - {<<: *b}\n",
        f"c.yaml:1: unknown key 'base'. Known here: {', '.join(sorted(Config.model_fields))}",
    ),
    "the best tier gives up": (
        tier(
            'backend: openai\n        served_model: m\n        replicas: [{url: "http://h:1"}]\n        gives_up: {n: 1}'
        ),
        "c.yaml:7: the best tier gives nothing up: it is what the others are measured by. Move it to a lower tier",
    ),
    "word for a number": (
        tier("backend: cache\n        slots: eight"),
        "c.yaml:5: 'models.chat.tiers[0].slots' is 'eight'. Write a whole number such as 8",
    ),
    "a size in words": (
        tier("backend: cache\n        kv: {budget_bytes: 4GB}"),
        "c.yaml:5: 'models.chat.tiers[0].kv.budget_bytes' is '4GB'. Write it in bytes, such as 1073741824 for 1 GiB",
    ),
    "a size that is too small": (
        tier("backend: cache\n        kv: {budget_bytes: 100}"),
        "c.yaml:5: 'models.chat.tiers[0].kv.budget_bytes' is 100. Write at least 1048576",
    ),
    "a time without end": (
        tier("backend: cache\n        kv: {ttl_s: 1e300}"),
        "c.yaml:5: 'models.chat.tiers[0].kv.ttl_s' is 1e+300. Write at most 31536000",
    ),
    "fraction for a whole number": (
        tier("backend: cache\n        slots: 2.5"),
        "c.yaml:5: 'models.chat.tiers[0].slots' is 2.5. Write a whole number such as 8",
    ),
    "yes for a number": (
        tier("backend: cache\n        slots: true"),
        "c.yaml:5: 'models.chat.tiers[0].slots' is true. Write a whole number such as 8",
    ),
    "quoted number": (
        "server:\n  port: '8000'\n" + tier("backend: canned"),
        "c.yaml:2: 'server.port' is '8000'. Remove the quotes: a number is wanted, not text",
    ),
    "number for text": (
        tier("backend: canned\n        text: 5"),
        "c.yaml:5: 'models.chat.tiers[0].text' is 5. Write text; quote it",
    ),
    "port out of range": (
        "server: {port: 70000}\n" + tier("backend: canned"),
        "c.yaml:1: 'server.port' is 70000. Write at most 65535",
    ),
    "share out of range": (
        tier("{backend: canned, quality: 2}"),
        "c.yaml:4: 'models.chat.tiers[0].quality' is 2. Write at most 1",
    ),
    "duration of nothing": (
        tier("{backend: cache, max_age_s: 0}"),
        "c.yaml:4: 'models.chat.tiers[0].max_age_s' is 0. Write more than 0",
    ),
    "no end of time": (
        "request_timeout_s: .inf\n" + tier("backend: canned"),
        "c.yaml:1: 'request_timeout_s' is inf: Input should be a finite number. See the config reference in docs/config.md",
    ),
    "bad tier name": (
        tier("{backend: canned, name: Big Model}"),
        "c.yaml:4: 'models.chat.tiers[0].name' is 'Big Model'. "
        "Write small letters, digits, - and _, beginning with a letter or digit, at most 63",
    ),
    "same name twice": (
        tier("{backend: canned, name: a}\n      - {backend: cache, name: a}"),
        "c.yaml:5: two tiers of 'chat' are called 'a'. Give each tier of a model a name of its own",
    ),
    "a tier under a word of callers": (
        tier("{backend: canned, name: never}"),
        "c.yaml:4: 'never' is a word of its own in x-degradation, so that no caller could name this tier. "
        "Give it another name",
    ),
    "a key that is no hash": (
        tier("{backend: canned}") + "keys: [{name: a, sha256: abc}]\n",
        "c.yaml:5: 'keys[0].sha256' is 'abc'. "
        "Write what `printf %s KEY | sha256sum` prints: 64 digits and letters from a to f",
    ),
    "a key's lowest tier that its model has not got": (
        tier("{backend: canned}") + f"keys: [{{name: a, sha256: '{'0' * 64}', lowest_tier: small}}]\n",
        "c.yaml:5: 'chat' has no tier 'small', and the key is for that model, too. "
        "Write one of allow, never, canned, or add `models: […]`",
    ),
    "key twice": (
        tier("backend: canned\n        text: a\n        text: b"),
        "c.yaml:6: the key 'text' is written twice, first on line 5. Keep one of the two",
    ),
    "variable unset": (
        tier('{backend: cache, api_key: "${NO_SUCH_KEY}"}'),
        "c.yaml:4: the environment has no NO_SUCH_KEY. export NO_SUCH_KEY=… before the start",
    ),
    "variable half written": (
        tier('{backend: canned, text: "${NOT CLOSED"}'),
        "c.yaml:4: '${NOT CLOSED' holds a '${' that is not ${NAME}. Write ${NAME}: letters, digits, underscores",
    ),
    "openai without model": (
        tier('{backend: openai, replicas: [{url: "http://h:1"}]}'),
        "c.yaml:4: a tier with backend openai needs 'served_model'. "
        "Add `served_model: …`, the name under which that server knows the model",
    ),
    "openai without replicas": (
        tier("{backend: openai, served_model: m}"),
        "c.yaml:4: a tier with backend openai needs 'replicas'. Add `replicas: [{url: \"http://HOST:PORT\"}]`",
    ),
    "openai with no replica": (
        tier("backend: openai\n        served_model: m\n        replicas: []"),
        "c.yaml:6: a tier with backend openai needs 'replicas'. Add `replicas: [{url: \"http://HOST:PORT\"}]`",
    ),
    "replica without url": (
        tier("backend: openai\n        served_model: m\n        replicas:\n          - {zone: a}"),
        "c.yaml:7: 'models.chat.tiers[0].replicas[0].url' is missing. Add `url: …`",
    ),
    "replica without scheme": (
        tier(
            "backend: openai\n        served_model: m\n        replicas:\n          - {url: 'localhost:8000'}"
        ),
        "c.yaml:7: 'localhost:8000' is no address of a server. Write http://HOST:PORT",
    ),
    "replica of another kind": (
        tier("backend: openai\n        served_model: m\n        replicas:\n          - {url: 'ftp://h:1'}"),
        "c.yaml:7: 'ftp://h:1' is no address of a server. Write http://HOST:PORT",
    ),
    "replica's port is none": (
        tier(
            "backend: openai\n        served_model: m\n        replicas:\n          - {url: 'http://h:99999'}"
        ),
        "c.yaml:7: 'http://h:99999' is no address of a server. Write http://HOST:PORT",
    ),
    "replica with a query": (
        tier(
            "backend: openai\n        served_model: m\n        replicas:\n          - {url: 'http://h:1/v1?a=b'}"
        ),
        "c.yaml:7: 'http://h:1/v1?a=b' carries a query or a fragment. Write http://HOST:PORT, with a path at most",
    ),
    "replica twice": (
        tier(
            "backend: openai\n        served_model: m\n        replicas: [{url: 'http://h:1'}, {url: 'http://h:1/'}]"
        ),
        "c.yaml:6: 'http://h:1/' is listed twice in this tier. Keep one of the two",
    ),
    "vllm without model": (
        tier("{backend: vllm}"),
        "c.yaml:4: a tier with backend vllm needs 'model'. Add `model: …`, a folder or a hub id",
    ),
    "llamacpp without model": (
        tier("{backend: llamacpp}"),
        "c.yaml:4: a tier with backend llamacpp needs 'model'. Add `model: …`, a GGUF file",
    ),
    "empty canned text": (
        tier("backend: canned\n        text: ' '"),
        "c.yaml:5: the text is empty. Write what clients are told, or remove `text`",
    ),
    "grpc": (
        "server: {grpc_port: 8000}\n" + tier("backend: canned"),
        "c.yaml:1: HTTP listens on 8000 already. Give gRPC a port of its own, or set grpc_port to 0",
    ),
    "sentinel without a master": (
        "state_store: {url: 'redis+sentinel://h:1'}\n" + tier("backend: canned"),
        "c.yaml:1: the state store's URL can't be used: the name of the master is missing: "
        "redis+sentinel://HOST:PORT,HOST:PORT/MASTER. " + STORES,
    ),
    "cluster with a database": (
        "state_store: {url: 'redis+cluster://h:1/2'}\n" + tier("backend: canned"),
        "c.yaml:1: the state store's URL can't be used: a Cluster has no databases: end the URL after its hosts. "
        + STORES,
    ),
    "store of another kind": (
        "state_store: {url: postgres}\n" + tier("backend: canned"),
        "c.yaml:1: 'postgres' is no state store. " + STORES,
    ),
    "store without host": (
        "state_store: {url: 'redis://'}\n" + tier("backend: canned"),
        "c.yaml:1: the state store's URL can't be used: the host is missing: write HOST:PORT. " + STORES,
    ),
    "KV blocks in memory": (
        "state_store: {url: memory}\n"
        + tier("backend: vllm\n        model: m\n        kv: {strategy: sync}"),
        "c.yaml:7: KV blocks need a Redis, and the state store is memory. "
        "Set state_store.url to embedded or redis://…, or kv.strategy to recompute",
    ),
    "KV blocks in the host memory of no GPU": (
        tier("backend: vllm\n        model: m\n        kv: {strategy: sync, host_memory_bytes: 1073741824}"),
        "c.yaml:6: vLLM keeps blocks in host memory beside a GPU only. Set the tier's gpu, or leave it out",
    ),
    "a state store's URL without its scheme": (
        "state_store: {url: 'redis:/u:hush@h:1'}\n" + tier("backend: canned"),
        "c.yaml:1: 'h:1' is no state store. " + STORES,
    ),
    "KV blocks that the engine's own arguments undo": (
        tier(
            "backend: vllm\n        model: m\n        kv: {strategy: replicate}\n"
            '        engine_args: ["--dtype", "float32", "--kv-transfer-config={}"]'
        ),
        "c.yaml:7: with --kv-transfer-config among its arguments, the engine keeps no KV blocks by 'kv'. "
        "Remove one of the two",
    ),
    "KV blocks in the host memory of servers that run": (
        tier(
            'backend: openai\n        served_model: m\n        replicas: [{url: "http://h:1"}]\n'
            "        kv: {strategy: sync, host_memory_bytes: 1073741824}"
        ),
        "c.yaml:7: vLLM keeps blocks in host memory beside a GPU only. Leave it out",
    ),
    "no such picker": (
        "routing:\n  picker: worst\n" + tier("backend: canned"),
        "c.yaml:2: there is no routing policy 'worst'. "
        "Write a name that docs/config.md lists, or package.module:function",
    ),
    "no such filter": (
        "routing:\n  filters:\n    - free_slot\n    - no.such.module:name\n" + tier("backend: canned"),
        "c.yaml:4: there is no routing policy 'no.such.module:name'. "
        "Write a name that docs/config.md lists, or package.module:function",
    ),
    "no such scorer": (
        "routing:\n  scorers: {session: 1.0, luck: 2.0}\n" + tier("backend: canned"),
        "c.yaml:2: there is no routing policy 'luck'. "
        "Write a name that docs/config.md lists, or package.module:function",
    ),
    "scale upside down": (
        tier("backend: vllm\n        model: m\n        scale: {min: 4, max: 1}"),
        "c.yaml:6: scale.max 1 is below scale.min 4. Set max to 4 or more",
    ),
    "scale below zero": (
        tier("backend: vllm\n        model: m\n        scale: {min: -1}"),
        "c.yaml:6: 'models.chat.tiers[0].scale.min' is -1. Write at least 0",
    ),
    "a command without one": (
        tier("backend: command\n        served_model: m"),
        "c.yaml:4: a tier with backend command needs 'command'. "
        'Add `command: [program, --port, "{port}", …]`, which starts one server',
    ),
    "no such slice": (
        tier("backend: vllm\n        model: m\n        gpu: 9g.1gb"),
        "c.yaml:6: no GPU has a MIG profile '9g.1gb'. Write one as `nvidia-smi mig -lgip` lists them, such as 1g.18gb, "
        "a number of GPUs, or 0 for the CPU",
    ),
    "gpu below nothing": (
        tier("backend: vllm\n        model: m\n        gpu: -1"),
        "c.yaml:6: gpu is -1. Write a number of GPUs, or 0 for the CPU",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_config_is_refused_with_its_line_and_mend(case: str, tmp_path: Path) -> None:
    text, expected = BAD[case]
    assert faults(tmp_path, text)[0] == expected


def test_every_fault_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "server: {port: x}\n" + tier("{backend: vllm}\n      - {backend: cache, slotz: 1}") + "nope: 1\n"
    lines = [fault.split(" ")[0] for fault in faults(tmp_path, text)]
    assert lines == ["c.yaml:1:", "c.yaml:5:", "c.yaml:6:", "c.yaml:7:"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none.yaml")
    assert str(caught.value).startswith(f"{tmp_path}/none.yaml: there is no such file. ")


def test_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is a folder"):
        load_config(tmp_path)
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "b.yaml")


def test_only_tiers_with_a_backend_are_needed(tmp_path: Path) -> None:
    config = load(
        tmp_path, "models: {chat: {tiers: [{backend: cache}, {backend: canned}, {backend: canned}]}}\n"
    )
    cached, canned, again = config.models["chat"].tiers
    assert (config.server.host, config.server.port, config.state_store.url) == ("127.0.0.1", 8000, "embedded")
    assert (cached.name, cached.quality) == ("cache", 0.5)
    assert (canned.name, canned.quality, canned.text) == ("canned", 0.0, CANNED_TEXT)
    assert again.name == "canned-2"


def test_a_tier_that_may_go_to_zero_wakes(tmp_path: Path) -> None:
    text = tier("backend: vllm\n        model: m\n        scale: {min: 0, max: 3}")
    (asleep,) = load(tmp_path, text).models["chat"].tiers
    assert (asleep.scale.min, asleep.scale.max, asleep.for_gateway().wakes) == (0, 3, True)
    (awake,) = load(tmp_path, text.replace("min: 0", "min: 1")).models["chat"].tiers
    assert not awake.for_gateway().wakes


def test_standbys_are_left_out_of_rotation(tmp_path: Path) -> None:
    text = tier("backend: vllm\n        model: m\n        scale: {min: 2, standbys: 1}")
    (found,) = load(tmp_path, text).models["chat"].tiers
    assert found.for_gateway().in_rotation == 2
    (found,) = load(tmp_path, text.replace(", standbys: 1", "")).models["chat"].tiers
    assert found.for_gateway().in_rotation is None


def test_scale_max_follows_min(tmp_path: Path) -> None:
    tiers = load(tmp_path, GOOD).models["chat"].tiers
    assert (tiers[1].scale.min, tiers[1].scale.max) == (2, 2)
    assert (tiers[0].scale.min, tiers[0].scale.max) == (1, 1)


@pytest.mark.parametrize(
    ("written", "value", "expected"),
    [("${PORT}", "8123", 8123), ("${P1}${P2}", None, 8123)],
)
def test_variables_take_the_type_of_what_they_hold(
    tmp_path: Path, written: str, value: str, expected: int
) -> None:
    text = f"server:\n  port: {written}\n" + tier("backend: canned")
    environment = {"PORT": value} if value else {"P1": "81", "P2": "23"}
    assert load(tmp_path, text, environment).server.port == expected


def test_a_quoted_variable_stays_text(tmp_path: Path) -> None:
    config = load(
        tmp_path, tier('{backend: canned, text: "${CODE} ${WHO}"}'), {"CODE": "7", "WHO": "${CODE}"}
    )
    assert config.models["chat"].tiers[0].text == "7 ${CODE}"


def test_secrets_stay_out_of_what_is_printed(tmp_path: Path) -> None:
    text = "admin_key: hush-1\nstate_store: {url: 'redis://:hush-2@h:1'}\n" + tier(
        "{backend: openai, served_model: m, api_key: hush-3, replicas: [{url: 'http://h:1'}]}"
    )
    assert "hush" not in repr(load(tmp_path, text))


def test_the_gateway_gets_its_part(tmp_path: Path) -> None:
    config = load(tmp_path, "request_timeout_s: 30\n" + GOOD)
    spec = to_gateway_spec(config)
    assert spec.request_timeout_s == 30
    assert [tier.name for tier in spec.models["chat"].tiers] == ["primary", "small", "cached", "canned"]
    assert spec.models["chat"].tiers[0].replicas[0].zone == "a"
    assert not hasattr(spec.models["chat"].tiers[1], "scale")


def test_managed_tiers_are_those_that_graceway_starts(tmp_path: Path) -> None:
    assert [(model, tier.name) for model, tier in load(tmp_path, GOOD).managed_tiers()] == [("chat", "small")]


SHIPPED = sorted((Path(__file__).parents[2] / "deploy").glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.name for path in SHIPPED])
def test_what_ships_is_valid(path: Path) -> None:
    assert load_config(path, {}).models


def test_something_ships() -> None:
    assert "local.yaml" in [path.name for path in SHIPPED]
