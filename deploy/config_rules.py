"""What a config must say beyond its types, and what it may not ask for yet. Plain data in, problems out.

The rules read the file's data rather than the validated models: a wrong type elsewhere hides none of them.
"""

from collections.abc import Iterator
from urllib.parse import urlsplit

from deploy.certificate_rules import authority_faults, certificate_faults
from deploy.yaml_lines import Document, Place, Plain, Problem
from gateway.policy.route import resolve
from replicas.mig.geometry import GEOMETRIES
from replicas.model_tokens import ModelTokens
from state_store.redis_url import KINDS, parse_redis_url

_NEEDS = {
    "openai": {
        "served_model": "Add `served_model: …`, the name under which that server knows the model",
        "replicas": 'Add `replicas: [{url: "http://HOST:PORT"}]`',
    },
    "vllm": {"model": "Add `model: …`, a folder or a hub id"},
    "llamacpp": {"model": "Add `model: …`, a GGUF file"},
    "command": {
        "command": 'Add `command: [program, --port, "{port}", …]`, which starts one server',
        "served_model": "Add `served_model: …`, the name under which that server knows the model",
    },
}
_STORES = "Write embedded, memory, redis://HOST:PORT, rediss://, unix://, redis+sentinel:// or redis+cluster:// (docs/config.md)"


def rule_problems(document: Document) -> list[Problem]:
    """Everything that the rules object to, each at its line."""
    data = document.data if isinstance(document.data, dict) else {}
    found = [
        *_server_faults(data.get("server")),
        *_store_faults(data.get("state_store")),
        *_routing_faults(data.get("routing")),
    ]
    models = data.get("models")
    for name, model in models.items() if isinstance(models, dict) else ():
        found += _model_faults(("models", name), model)
        found += _kv_faults(("models", name), model, data.get("state_store"))
    found += _key_faults(data.get("keys"), models)
    return [Problem(document.line_of(place), what, mend) for place, what, mend in found]


Fault = tuple[Place, str, str]
WORDS_OF_CALLERS = ("allow", "never")


def _key_faults(keys: Plain, models: Plain) -> Iterator[Fault]:
    """A lowest tier that a model has not got would be the caller's mistake with every request."""
    ladders = {name: _names_of(model) for name, model in models.items()} if isinstance(models, dict) else {}
    for index, key in enumerate(keys if isinstance(keys, list) else ()):
        written = key if isinstance(key, dict) else {}
        lowest, wanted = written.get("lowest_tier"), written.get("models")
        if not isinstance(lowest, str) or lowest in WORDS_OF_CALLERS:
            continue
        for name in wanted if isinstance(wanted, list) else ladders:
            ladder = ladders.get(str(name), [lowest])
            if lowest not in ladder:
                what = f"'{name}' has no tier '{lowest}', and the key is for that model, too"
                mend = f"Write one of {', '.join((*WORDS_OF_CALLERS, *ladder))}, or add `models: […]`"
                yield ("keys", index, "lowest_tier"), what, mend


def _names_of(model: Plain) -> list[str]:
    tiers = model.get("tiers") if isinstance(model, dict) else None
    written = [tier for tier in (tiers if isinstance(tiers, list) else ()) if isinstance(tier, dict)]
    return [str(tier.get("name") or tier.get("backend")) for tier in written]


def _server_faults(server: Plain) -> Iterator[Fault]:
    written = server if isinstance(server, dict) else {}
    grpc_port = written.get("grpc_port", 0)
    if grpc_port and grpc_port == written.get("port", 8000):
        mend = "Give gRPC a port of its own, or set grpc_port to 0"
        yield ("server", "grpc_port"), f"HTTP listens on {grpc_port} already", mend
    tls = written.get("tls")
    if isinstance(tls, dict):
        yield from certificate_faults(("server", "tls"), tls)
        yield from authority_faults(("server", "tls", "client_ca_file"), tls.get("client_ca_file"))


def _store_faults(store: Plain) -> Iterator[Fault]:
    url = store.get("url") if isinstance(store, dict) else None
    if not isinstance(url, str) or url in ("embedded", "memory"):
        return
    place: Place = ("state_store", "url")
    if _scheme(url) not in KINDS:
        # Beside a host there may be a password.
        yield place, f"'{_scheme(url) or url.rpartition('@')[2]}' is no state store", _STORES
        return
    try:
        login = parse_redis_url(url).login
    except ValueError as error:
        yield place, f"the state store's URL can't be used: {error}", _STORES
        return
    yield from authority_faults(place, login.get("ssl_ca_certs"))
    cert = login.get("ssl_certfile")
    # Both may be in one file.
    pair = {"cert_file": cert, "key_file": login.get("ssl_keyfile", cert)}
    yield from ((place, what, mend) for _, what, mend in certificate_faults(place, pair))


def _routing_faults(routing: Plain) -> Iterator[Fault]:
    written = routing if isinstance(routing, dict) else {}
    filters, scorers = written.get("filters"), written.get("scorers")
    named: list[tuple[Place, Plain]] = [(("routing", "picker"), written.get("picker"))]
    named += [
        (("routing", "filters", i), name)
        for i, name in enumerate(filters if isinstance(filters, list) else [])
    ]
    named += [(("routing", "scorers", name), name) for name in (scorers if isinstance(scorers, dict) else {})]
    for place, name in named:
        if isinstance(name, str) and not _names_a_policy(name):
            mend = "Write a name that docs/config.md lists, or package.module:function"
            yield place, f"there is no routing policy '{name}'", mend


def _names_a_policy(name: str) -> bool:
    try:
        resolve(name)
    except (ValueError, ImportError):
        return False
    return True


def _model_faults(place: Place, model: Plain) -> Iterator[Fault]:
    if isinstance(model, dict):
        yield from _feature_faults((*place, "features"), model.get("features"))
    tiers = model.get("tiers") if isinstance(model, dict) else None
    if not isinstance(tiers, list):
        return
    first: dict[Plain, int] = {}
    for index, tier in enumerate(tiers):
        if not isinstance(tier, dict):
            continue
        here: Place = (*place, "tiers", index)
        name = tier.get("name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            what = f"two tiers of '{place[-1]}' are called '{name}'"
            yield (*here, "name"), what, "Give each tier of a model a name of its own"
        if name in WORDS_OF_CALLERS:
            what = f"'{name}' is a word of its own in x-degradation, so that no caller could name this tier"
            yield (*here, "name"), what, "Give it another name"
        if index == 0 and "gives_up" in tier:
            what = "the best tier gives nothing up: it is what the others are measured by"
            yield (*here, "gives_up"), what, "Move it to a lower tier"
        yield from _tier_faults(here, tier)


def _feature_faults(place: Place, features: Plain) -> Iterator[Fault]:
    items = features.get("items") if isinstance(features, dict) else None
    seen: set[Plain] = set()
    for index, item in enumerate(items if isinstance(items, list) else ()):
        name = item.get("name") if isinstance(item, dict) else None
        if isinstance(name, str) and name in seen:
            what = f"two features are called '{name}'"
            yield (*place, "items", index, "name"), what, "Give each a name of its own"
        if isinstance(name, str):
            seen.add(name)


def _tier_faults(place: Place, tier: dict[str, Plain]) -> Iterator[Fault]:
    backend = tier.get("backend")
    for key, mend in _NEEDS.get(str(backend), {}).items():
        if tier.get(key) in (None, "", []):
            yield (*place, key), f"a tier with backend {backend} needs '{key}'", mend
    if "budget" in tier and "price" not in tier:
        mend = "Add `price: {prompt: …, answer: …}`, for a million tokens each"
        yield (*place, "budget"), "a budget without a price bounds nothing", mend
    yield from _slo_faults(place, tier.get("slo"))
    yield from authority_faults((*place, "ca_file"), tier.get("ca_file"))
    yield from certificate_faults(place, tier)
    yield from _text_faults(place, tier)
    yield from _near_faults(place, tier.get("near"))
    yield from _tokenizer_faults(place, tier.get("tokenizer"))
    yield from _replica_faults(place, tier.get("replicas"))
    yield from _scale_faults(place, tier.get("scale"))
    yield from _gpu_faults(place, tier.get("gpu"))


def _text_faults(place: Place, tier: dict[str, Plain]) -> Iterator[Fault]:
    texts = tier.get("texts")
    written: dict[Place, Plain] = {(*place, "text"): tier.get("text")}
    written |= {(*place, "texts", k): v for k, v in (texts if isinstance(texts, dict) else {}).items()}
    for where, text in written.items():
        if isinstance(text, str) and not text.strip():
            yield where, "the text is empty", f"Write what clients are told, or remove `{where[-1]}`"


def _near_faults(place: Place, near: Plain) -> Iterator[Fault]:
    url = near.get("url") if isinstance(near, dict) else None
    if isinstance(url, str) and not _is_address(url):
        yield (*place, "near", "url"), f"'{url}' is no address of a server", "Write http://HOST:PORT"


def _slo_faults(place: Place, slo: Plain) -> Iterator[Fault]:
    written = slo if isinstance(slo, dict) else {}
    all_s, sheddable_s = written.get("ttft_s", 5.0), written.get("sheddable_ttft_s")
    if isinstance(all_s, int | float) and isinstance(sheddable_s, int | float) and sheddable_s < all_s:
        what = f"sheddable requests are promised more ({sheddable_s:g} s) than all others ({all_s:g} s)"
        yield (*place, "slo", "sheddable_ttft_s"), what, f"Write {all_s:g} or more, or remove it"


def _tokenizer_faults(place: Place, tokenizer: Plain) -> Iterator[Fault]:
    if isinstance(tokenizer, str) and not ModelTokens(tokenizer).is_there:
        mend = "Name the model's folder, or its tokenizer.json"
        yield (*place, "tokenizer"), f"there is no tokenizer.json at '{tokenizer}'", mend


def _replica_faults(place: Place, replicas: Plain) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, replica in enumerate(replicas if isinstance(replicas, list) else ()):
        url = replica.get("url") if isinstance(replica, dict) else None
        here: Place = (*place, "replicas", index, "url")
        if not isinstance(url, str):
            continue
        if not _is_address(url):
            yield here, f"'{url}' is no address of a server", "Write http://HOST:PORT"
        elif _has_query(url):
            yield (
                here,
                f"'{url}' carries a query or a fragment",
                "Write http://HOST:PORT, with a path at most",
            )
        elif url.rstrip("/") in seen:
            yield here, f"'{url}' is listed twice in this tier", "Keep one of the two"
        seen.add(url.rstrip("/"))


def _scale_faults(place: Place, scale: Plain) -> Iterator[Fault]:
    low, high = (scale.get("min", 1), scale.get("max", 1)) if isinstance(scale, dict) else (1, 1)
    if not isinstance(low, int) or not isinstance(high, int):
        return
    if isinstance(scale, dict) and "max" not in scale:
        high = max(low, 1)
    if high < low:
        yield (
            (*place, "scale", "max"),
            f"scale.max {high} is below scale.min {low}",
            f"Set max to {low} or more",
        )


def _gpu_faults(place: Place, gpu: Plain) -> Iterator[Fault]:
    if isinstance(gpu, str) and not any(gpu in geometry.profiles for geometry in GEOMETRIES.values()):
        yield (
            (*place, "gpu"),
            f"no GPU has a MIG profile '{gpu}'",
            "Write one as `nvidia-smi mig -lgip` lists them, such as 1g.18gb, a number of GPUs, or 0 for the CPU",
        )
    elif isinstance(gpu, int | float) and not isinstance(gpu, bool) and gpu < 0:
        yield (*place, "gpu"), f"gpu is {gpu}", "Write a number of GPUs, or 0 for the CPU"


def _kv_faults(place: Place, model: Plain, store: Plain) -> Iterator[Fault]:
    """Blocks need a Redis, and one whose keys are all in one place."""
    tiers = model.get("tiers") if isinstance(model, dict) else None
    url = store.get("url", "embedded") if isinstance(store, dict) else "embedded"
    for index, tier in enumerate(tiers if isinstance(tiers, list) else ()):
        if not isinstance(tier, dict) or not isinstance(kv := tier.get("kv"), dict):
            continue
        here: Place = (*place, "tiers", index, "kv")
        if kv.get("host_memory_bytes") and not tier.get("gpu"):
            mend = "Set the tier's gpu, or leave it out" if tier.get("backend") == "vllm" else "Leave it out"
            yield (*here, "host_memory_bytes"), "vLLM keeps blocks in host memory beside a GPU only", mend
        if kv.get("strategy", "recompute") == "recompute" or not isinstance(url, str):
            continue
        for argument in _against_blocks(tier.get("engine_args")):
            what = f"with {argument} among its arguments, the engine keeps no KV blocks by 'kv'"
            yield (*place, "tiers", index, "engine_args"), what, "Remove one of the two"
        if url == "memory":
            mend = "Set state_store.url to embedded or redis://…, or kv.strategy to recompute"
            yield here, "KV blocks need a Redis, and the state store is memory", mend


def _against_blocks(arguments: Plain) -> Iterator[str]:
    """Those by which the engine's own command line undoes what `kv` says."""
    for argument in arguments if isinstance(arguments, list) else ():
        name = str(argument).partition("=")[0].replace("_", "-")
        if name in ("--kv-transfer-config", "--no-enable-prefix-caching"):
            yield name


def _scheme(url: str) -> str:
    return url.split("://", 1)[0] if "://" in url else ""


def _is_address(url: str) -> bool:
    return _scheme(url) in ("http", "https") and _host_and_port_are_whole(url)


def _host_and_port_are_whole(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _has_query(url: str) -> bool:
    parts = urlsplit(url)
    return bool(parts.query or parts.fragment)
