"""One of two replicas answers quickly, well formed, and wrongly."""

from loadtests.drill_acts import switch
from loadtests.drill_checks import at_rest, no_silent_end, no_wrong_answer_after
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

FAULT, WELL = switch("wrong"), switch("none")

DRILL = Drill(
    name="replica-lying",
    about="One of two replicas answers with text that is not the model's.",
    protection="known prompts with known answers (probe)",
    setup=Setup(Plan(more_config=QUICK_HEALTH), FAULT, WELL),
    unprotected=Setup(Plan(more_config=QUICK_HEALTH, more_tier="probe: null"), FAULT, WELL),
    checks=(no_wrong_answer_after(4.0), no_silent_end(), at_rest()),
    by_hand="start one replica on other weights under the same name, and pass --verify tokens for simulated engines",
    heal_s=14.0,
    duration_s=18.0,
)
