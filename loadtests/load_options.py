"""The options that the Locust file adds to Locust's own."""

import argparse
import random
from dataclasses import dataclass
from pathlib import Path

from locust.argument_parser import LocustArgumentParser

from loadtests.arrivals import FORMS, Form, parse_form
from loadtests.judgement import Verify
from loadtests.prompts import Prompts
from loadtests.thresholds import Thresholds

PRIORITIES = ("critical", "standard", "sheddable")


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What every user of a run shares."""

    model: str
    verify: Verify
    prompts: Prompts
    answer_tokens: int
    turns: int
    think_s: float
    mix: dict[str, float]
    form: Form
    seed: int
    keys: tuple[tuple[str, str], ...]
    """Tenants and their keys; one without either where there are none."""
    grpc: str
    """`host:port`, or empty."""

    def priority(self, rng: random.Random) -> str:
        return rng.choices(list(self.mix), list(self.mix.values()))[0]


def add_options(parser: LocustArgumentParser) -> None:
    """Locust's parser takes them from the command line, the web UI and LOCUST_… variables alike."""
    group = parser.add_argument_group("load")
    group.add_argument("--model", default="m", help="the name that clients ask for")
    group.add_argument(
        "--verify",
        default="tokens",
        choices=("tokens", "shape"),
        help="tokens: as the simulated engine must answer; shape: whole, whatever it says",
    )
    group.add_argument("--answer-tokens", type=int, default=50, help="of each answer")
    group.add_argument("--prompt-tokens", type=int, default=32, help="of each turn")
    group.add_argument("--prefix-tokens", type=int, default=0, help="of the system prompts that chats share")
    group.add_argument("--prefixes", type=int, default=8, help="how many system prompts there are")
    group.add_argument("--turns", type=int, default=4, help="of one chat")
    group.add_argument("--think-s", type=float, default=1.0, help="between two turns, on average")
    group.add_argument(
        "--mix", default="critical=0.2,standard=0.7,sheddable=0.1", help="priorities and shares"
    )
    group.add_argument(
        "--keys", default="", help="a file of API keys: a tenant's name and its key on each line"
    )
    group.add_argument("--grpc", default="", help="host:port of the same server's gRPC, for GrpcChats")
    forms = "; ".join(f"{kind}:{text}" for kind, text in FORMS.items())
    group.add_argument("--arrivals", default="poisson:5", help=f"of OpenLoop: {forms}".replace("%", "%%"))
    group.add_argument(
        "--arrivals-period-s", type=float, default=60.0, help="one ramp, one round of spikes, one day"
    )
    group.add_argument("--seed", type=int, default=1)
    # Set by the master: among how many processes arrivals are dealt out.
    parser.add_argument("--shares", type=int, default=1, include_in_web_ui=False, help=argparse.SUPPRESS)
    Thresholds.add_options(parser)


def read_options(parsed: argparse.Namespace) -> LoadOptions:
    """Raises ValueError that says what is wrong."""
    return LoadOptions(
        model=parsed.model,
        verify=parsed.verify,
        prompts=Prompts(parsed.prefixes, parsed.prefix_tokens, parsed.prompt_tokens, parsed.seed),
        answer_tokens=parsed.answer_tokens,
        turns=parsed.turns,
        think_s=parsed.think_s,
        mix=parse_mix(parsed.mix),
        form=parse_form(parsed.arrivals, parsed.arrivals_period_s),
        seed=parsed.seed,
        keys=read_keys(Path(parsed.keys)) if parsed.keys else (("", ""),),
        grpc=parsed.grpc,
    )


def read_keys(path: Path) -> tuple[tuple[str, str], ...]:
    """Tenants and their keys; raises ValueError, which shows no key."""
    lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
    if not lines or any(len(words) != 2 for words in lines):
        raise ValueError(f"{path}: each line must hold a tenant's name and its key")
    return tuple((tenant, key) for tenant, key in lines)


def parse_mix(text: str) -> dict[str, float]:
    """`critical=0.2,standard=0.8`; raises ValueError."""
    mix: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        if name not in PRIORITIES:
            raise ValueError(f"no priority called {name!r}; there are {', '.join(PRIORITIES)}")
        mix[name] = float(share)
    return mix
