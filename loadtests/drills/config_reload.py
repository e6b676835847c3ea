"""The config is changed under load: a good one comes into force, a bad one is refused whole."""

from loadtests.drill_acts import reload, restart_gateways, write_config
from loadtests.drill_checks import QUALITY, at_rest, in_time, metric_changed, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Fleet, Plan

PLAN = Plan(more_config=QUICK_HEALTH)
CANNED = "      - {name: canned, backend: canned, quality: 0.25}\n"


async def _reload_good_then_bad(fleet: Fleet) -> None:
    write_config(fleet, PLAN, CANNED)
    assert await reload(fleet) == [200]
    assert fleet.config is not None
    fleet.config.write_text("models: {m: {tiers: [{backend: carrier-pigeon}]}}\n")
    assert await reload(fleet) == [400]


async def _restart(fleet: Fleet) -> None:
    write_config(fleet, PLAN, CANNED)
    await restart_gateways(fleet)


DRILL = Drill(
    name="config-reload",
    about="A tier is added and the config reloaded under load; then a bad config is, which must be refused.",
    protection="reload in place (POST /admin/reload), rather than a restart",
    setup=Setup(PLAN, _reload_good_then_bad),
    unprotected=Setup(PLAN, _restart),
    checks=(
        whole(),
        in_time(),
        metric_changed(QUALITY, "quality of all tiers, added by the reload"),
        at_rest(),
    ),
    by_hand="change the gateway's config and reload it (kill -HUP …, POST /admin/reload)",
    duration_s=12.0,
)
