"""What the gateway is told: models, tiers and tuning, frozen and validated. `deploy/config.py` adds what only it needs.

These are the YAML's own shapes, so that a knob is declared once: its name, unit, default and bounds stand here.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.policy.prefix import DEFAULT_BUDGET_BYTES
from replicas.client_tls import TlsFiles

Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]

NAME = r"^[a-z0-9][a-z0-9_-]{0,62}$"
SHA256 = r"^[0-9a-f]{64}$"
DATE = r"^\d{4}-\d\d-\d\d$"
WEB_URL = r"^https?://"

Priority = Literal["critical", "standard", "sheddable"]


class Spec(BaseModel):
    """Frozen and strict: unknown keys and wrong types are errors, never ignored or coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def faults_of(error: ValidationError) -> list[str]:
    """What is wrong with a request's body, each with where it is."""
    return [f"{'.'.join(map(str, e['loc'])) or 'the body'}: {e['msg']}" for e in error.errors()]


class Slo(Spec):
    """What a tier promises: seconds to the first token, and between two tokens."""

    ttft_s: Seconds = 5.0
    itl_s: Seconds = 1.0
    sheddable_ttft_s: Seconds | None = None
    """What sheddable requests are promised instead of `ttft_s`, so that they wait longer rather than be refused."""

    def ttft_s_of(self, priority: Priority) -> float:
        """What requests of that priority are promised."""
        return (priority == "sheddable" and self.sheddable_ttft_s) or self.ttft_s

    def against_promise_s(self, seconds: float, priority: Priority) -> float:
        """A time as part of what that priority is promised, put in terms of `ttft_s`: so that signals mean one thing."""
        return seconds * self.ttft_s / self.ttft_s_of(priority)


class Endpoint(Spec):
    """A replica that already runs, by the address of its OpenAI-compatible server."""

    url: str
    zone: str = ""


class Probe(Spec):
    """The known prompt of a tier. Without `expect`, the answer on which the tier's replicas agree becomes the known one."""

    prompt: str = "1, 2, 3, 4, 5, 6, 7,"
    expect: str | None = None
    max_tokens: Annotated[int, Field(ge=1, le=64)] = 8


class GivesUp(Spec):
    """What a lower tier leaves out of a request. Every answer says what it was."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """The longest answer."""
    n: Annotated[int, Field(ge=1)] | None = None
    """The most choices (`n`, `best_of`)."""
    logprobs: bool = False
    """Whether log probabilities are left out."""
    context: bool = False
    """Whether the oldest turns are left out of a conversation that is longer than the tier's window."""


class PriceSpec(Spec):
    """What a host charges for a million tokens, in any currency."""

    prompt: Annotated[float, Field(ge=0)]
    answer: Annotated[float, Field(ge=0)]


class BudgetSpec(Spec):
    """What a tier may cost in a period, all gateways of a store together. Periods begin at midnight or full hours, UTC."""

    amount: Annotated[float, Field(gt=0)]
    """In the currency of the price."""
    per: Literal["hour", "day"] = "day"
    without_store: Share = 0.1
    """Of the amount, that one gateway may spend while the store can't be asked, beyond what it has claimed there."""


class NearSpec(Spec):
    """Which questions count as the same though their words differ: by an embedding model on an OpenAI-compatible server."""

    url: str
    served_model: str
    api_key: str | None = Field(default=None, repr=False)
    min_similarity: Annotated[float, Field(gt=0, le=1)] = 0.95
    """The cosine from which on they do."""
    timeout_s: Seconds = 0.2
    kept: Annotated[int, Field(ge=1, le=4096)] = 512
    """Questions that are remembered for all that is said before them; 64 times as many for the model."""


class KvSpec(Spec):
    """What outlives a replica of a vLLM tier: its KV blocks, in the Redis of the state store.

    `recompute` keeps none; `checkpoint` stores a turn's blocks at its end, `replicate` each block when it is full, both
    behind the answer; with `sync`, an answer ends when its blocks are stored.
    """

    strategy: Literal["recompute", "checkpoint", "replicate", "sync"] = "recompute"
    budget_bytes: Annotated[int, Field(ge=1024 * 1024)] = 512 * 1024 * 1024
    """Of all blocks in the store, of all replicas together."""
    ttl_s: Annotated[float, Field(gt=0, le=31_536_000)] = 3600.0
    """How long a block stays that nobody uses."""
    compression: Literal["none", "lz4", "int8", "fp8"] = "none"
    """`lz4` is without loss; `int8` and `fp8` keep one byte an element. It pays where the link is slow."""
    connections: Annotated[int, Field(ge=1, le=16)] = 2
    """Of each replica, that load at once."""
    host_memory_bytes: Annotated[int, Field(ge=0)] = 0
    """Of each replica, for blocks in the memory beside its GPU, above those in the store; vLLM's own tier."""


class TierSpec(Spec):
    """One way to answer. `backend` says how; `quality` (0 to 1) says what the answer is worth."""

    name: Annotated[str, Field(pattern=NAME)]
    backend: Literal["openai", "vllm", "llamacpp", "command", "cache", "canned"]
    served_model: str | None = None
    replicas: Annotated[tuple[Endpoint, ...], Field(strict=False)] = ()
    api_key: str | None = Field(default=None, repr=False)
    ca_file: str | None = None
    """Certificates of the authority that its servers' own are signed by; None is the system's."""
    cert_file: str | None = None
    """A certificate that is shown to the servers, whose key is in `key_file`."""
    key_file: str | None = None
    resume: Literal["ids", "text", "none"] = "ids"
    """How its servers go on with a broken answer: from token ids, from text (`continue_final_message`), or not at all."""
    price: PriceSpec | None = None
    budget: BudgetSpec | None = None
    slots: Annotated[int, Field(ge=1)] | None = None
    wakes: bool = False
    """Whether it may have no replica while nobody asks, and gets one when somebody does: then requests wait for it."""
    in_rotation: Annotated[int, Field(ge=1)] | None = None
    """How many of its replicas take requests; the others stand by. None: all do."""
    limit: Literal["aimd", "gradient", "none"] = "aimd"
    """Without `slots`: how the number of requests that a replica gets at once is learnt from its times to first token."""
    quality: Share = 1.0
    quality_as_of: Annotated[str, Field(pattern=DATE)] | None = None
    """When it was measured (`graceway bench quality`). None: it is a guess."""
    slo: Slo = Slo()
    gives_up: GivesUp = GivesUp()
    max_model_len: Annotated[int, Field(ge=16)] | None = None
    """The window: tokens of prompt and answer together. None: as the engine tells it."""
    tokenizer: str | None = None
    """A folder with the model's `tokenizer.json`, or that file."""
    kv: KvSpec = KvSpec()
    probe: Probe | None = Probe()
    text: str | None = None
    texts: dict[str, str] = Field(default_factory=dict)
    """Of a canned tier, by language."""
    language_field: str | None = None
    """The request's field that names its language, as in `metadata.language`; asked before Accept-Language."""
    max_age_s: Seconds = 3600.0
    near: NearSpec | None = None
    """Of a cache: whether questions that are nearly the same share an answer."""

    @property
    def tls(self) -> TlsFiles:
        """What connections to its servers are secured with."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file)

    @property
    def has_replicas(self) -> bool:
        """Whether engine servers stand behind it, rather than the gateway itself."""
        return self.backend not in ("cache", "canned")

    @property
    def is_managed(self) -> bool:
        """Whether Graceway starts its replicas itself, so that they are found in the registry."""
        return self.backend in ("vllm", "llamacpp", "command")


class HealthSpec(Spec):
    """How a replica's three checks run, and when they count."""

    interval_s: Seconds = 5.0
    timeout_s: Seconds = 2.0
    down_after: Annotated[int, Field(ge=1)] = 3
    up_after: Annotated[int, Field(ge=1)] = 2
    max_ejected_share: Share = 0.5


class EngineMetricsSpec(Spec):
    """How the engines' own metrics are read, by which what others run on a replica is known."""

    interval_s: Annotated[float, Field(ge=0)] = 0.5
    """Between two readings of a replica, longer where there are more than fifty; 0 turns it off."""
    stale_after_s: Seconds = 3.0
    """A reading older than this counts for nothing: then only what goes through this gateway does."""


class BreakerSpec(Spec):
    """When a breaker opens, over a sliding window, and how it comes back."""

    window_s: Seconds = 10.0
    min_count: Annotated[int, Field(ge=1)] = 5
    failure_share: Share = 0.5
    slow_share: Share = 0.8
    probes: Annotated[int, Field(ge=1)] = 2
    backoff_s: Seconds = 1.0
    backoff_max_s: Seconds = 30.0


class RetrySpec(Spec):
    """One budget for attempts beyond the first, replicas and tiers together."""

    budget_share: Share = 0.1
    """Of the traffic of the last ten seconds."""
    budget_floor_per_s: Annotated[float, Field(ge=0)] = 3.0
    """So that quiet times may retry at all."""
    max_attempts: Annotated[int, Field(ge=1)] = 6
    hedge: bool = False
    """Whether a slow prefill is started a second time elsewhere."""


class LadderSpec(Spec):
    """When a tier counts as proven."""

    proven_for_s: Seconds = 7 * 86_400.0
    """How long a drill that passed, or an answer, proves that a tier can serve."""


class RoutingSpec(Spec):
    """Filters, scorers with weights, and the picker, by name or import path."""

    filters: Annotated[tuple[str, ...], Field(strict=False)] = ("not_tried", "free_slot")
    scorers: dict[str, float] = Field(
        default_factory=lambda: {"session": 4.0, "predicted_wait": 2.0, "prefix": 1.0, "zone": 0.5}
    )
    picker: str = "best"
    zone: str = ""
    """The gateway's own zone; replicas there are preferred."""
    prefix_budget_bytes: Annotated[int, Field(ge=65536)] = DEFAULT_BUDGET_BYTES
    """Memory for what is known of prompts, of each model: who holds which of their beginnings."""


class ServerTlsSpec(Spec):
    """TLS for clients, on HTTP and gRPC alike, by PEM files. They may be renewed while the gateway runs."""

    cert_file: str
    """The certificate, and those between it and its authority."""
    key_file: str
    client_ca_file: str | None = None
    """With it, clients must show a certificate that one of these authorities signed."""


class LimitsSpec(Spec):
    """What a client connection may take: of each process, and past Ray Serve only, whose HAProxy has its own."""

    max_connections: Annotated[int, Field(ge=1)] = 16384
    """Beyond it the one that has been unused for longest is closed; when all are in use, the newest is refused."""
    max_connections_per_address: Annotated[int, Field(ge=1)] | None = None
    head_timeout_s: Seconds = 10.0
    """From a request's first byte to the end of its headers."""
    body_timeout_s: Seconds = 60.0
    """From the end of its headers to that of its body."""
    keep_alive_s: Seconds = 75.0
    """How long a connection may wait for its first or next request."""
    write_timeout_s: Seconds = 30.0
    """How long a client may leave what was sent to it unread: then its stream ends, and its slot is free."""
    max_head_bytes: Annotated[int, Field(ge=1024)] = 65536
    max_headers: Annotated[int, Field(ge=8)] = 128
    max_url_bytes: Annotated[int, Field(ge=64)] = 8192


class KeySpec(Spec):
    """A caller's API key, by its SHA-256 in hex: the key itself stands nowhere. `printf %s KEY | sha256sum` prints it."""

    name: Annotated[str, Field(min_length=1)]
    sha256: Annotated[str, Field(pattern=SHA256, repr=False)]
    tenant: str | None = None
    """Keys of one tenant share its quota and its share of the places; the key's name by default."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Of the tenant's share among tenants whose requests of the same priority wait."""
    highest_priority: Priority = "standard"
    models: Annotated[tuple[str, ...] | None, Field(strict=False)] = None
    lowest_tier: str | None = None
    """The lowest tier that its callers may be given."""
    requests_per_minute: Annotated[int, Field(ge=1)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1)] | None = None
    """Prompt and answer together. Both limits hold for all gateways of one state store."""
    max_at_once: Annotated[int, Field(ge=1)] | None = None
    """Requests of its tenant under way at the same time, in one gateway process."""

    @property
    def tenant_name(self) -> str:
        return self.tenant or self.name


class LogSpec(Spec):
    """What the process says on standard error, and in what form."""

    format: Literal["text", "json"] = "text"
    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: bool | None = None
    """Whether each finished request gets a line; by default those in JSON do."""

    @property
    def has_requests(self) -> bool:
        return self.format == "json" if self.requests is None else self.requests


class TracingSpec(Spec):
    """Where OpenTelemetry's spans go. Without an `url` there are none."""

    url: Annotated[str, Field(pattern=WEB_URL)] | None = None
    """A collector that takes OTLP over HTTP; spans are posted to `/v1/traces` below it."""
    ratio: Share = 1.0
    """Of the requests whose caller has not decided: a `traceparent` that comes with one says whether it is sampled."""
    service: Annotated[str, Field(min_length=1)] = "graceway"
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """Sent to the collector, such as its key."""


class FeatureSpec(Spec):
    """One thing that a model is told about a user, and how much depends on it."""

    name: Annotated[str, Field(pattern=NAME)]
    level: Literal["critical", "important", "useful", "optional"] = "important"
    """Without it: refuse; say `default`; say what it last was; leave it out."""
    about: str = ""
    """What it is, for the model to know."""
    default: str = ""
    timeout_s: Seconds = 0.05
    max_bytes: Annotated[int, Field(ge=1, le=65536)] = 4096
    """What is longer is cut."""
    max_age_s: Seconds = 3600.0
    """How old what a useful one last was may be."""


class FeaturesSpec(Spec):
    """What a model is told about users, from the state store."""

    items: Annotated[tuple[FeatureSpec, ...], Field(strict=False, min_length=1)]
    user_field: str = "user"
    """The request's field that names its user."""
    user_header: str | None = None
    """A header that does, asked first."""
    deadline_s: Seconds = 0.1
    """For all of them together."""


class ModelSpec(Spec):
    """The name that clients ask for, and its ladder: tiers, best first."""

    features: FeaturesSpec | None = None
    tiers: Annotated[tuple[TierSpec, ...], Field(strict=False, min_length=1)]


class GatewaySpec(Spec):
    """Everything that the request path needs to know."""

    models: dict[str, ModelSpec]
    health: HealthSpec = HealthSpec()
    engine_metrics: EngineMetricsSpec = EngineMetricsSpec()
    breaker: BreakerSpec = BreakerSpec()
    retry: RetrySpec = RetrySpec()
    routing: RoutingSpec = RoutingSpec()
    ladder: LadderSpec = LadderSpec()
    limits: LimitsSpec = LimitsSpec()
    max_body_bytes: Annotated[int, Field(ge=1024)] = 8 * 1024 * 1024
    request_timeout_s: Seconds = 600.0
    """The deadline of a caller that names none."""
    admin_key: str | None = Field(default=None, repr=False)
    keys: Annotated[tuple[KeySpec, ...], Field(strict=False)] = ()
    """Without any, everybody who reaches the gateway may use it."""
    log: LogSpec = LogSpec()
    tracing: TracingSpec = TracingSpec()
