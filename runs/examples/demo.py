"""The example runs that `bin/up` starts: within two minutes each of the situations that an operator meets is there."""

from dataclasses import dataclass, field

from django.conf import settings
from django.contrib.auth.models import User

from runs import operations
from runs.agents import Json
from runs.examples.shop.client import ShopClient
from runs.models import Run
from runs.operations import Start

DEMO = {"demo": "yes"}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One run at a batch of its own. options: of the shop's batch."""

    goal: str
    seed: int
    options: dict[str, object] = field(default_factory=dict)


SCENES = (
    # Everything is allowed and small: it is over first.
    Scene(
        goal="Work the small refund requests of the morning", seed=3, options={"kinds": ["plain", "plain", "forbidden"]}
    ),
    # One request is above the limit of what the agent may refund by itself.
    Scene(goal="Work the refund requests of the day", seed=11, options={"kinds": ["plain", "large", "plain"]}),
    # The shop takes so long to answer that what was read is too old by the time it is needed: it is read again.
    Scene(
        goal="Work the requests of the slow shop",
        seed=5,
        options={"kinds": ["plain", "plain", "plain", "large"], "slow_s": 5.5},
    ),
    # A parcel is still on its way: the run waits until it should be there, and reads again.
    Scene(
        goal="Work the requests with a parcel in transit",
        seed=8,
        options={"kinds": ["in_transit", "plain"], "arrives_in_s": 75},
    ),
)


def start_demo(*, by: User) -> list[Run]:
    """Start the example runs, unless there are runs already; the runs that were started."""
    if Run.objects.exists():
        return []
    shop = ShopClient(url=settings.SHOP_URL, timeout_s=20.0, caller="demo")
    started = []
    skus: list[str] = []
    for scene in SCENES:
        batch = shop.create_batch(scene.seed, **scene.options)
        skus = batch["skus"][:3]
        started.append(_start("refund-desk", scene.goal, {"batch": batch["batch"]}, by=by))
    watch: dict[str, Json] = {"skus": [*skus], "rounds": 40, "every_s": 45}
    started.append(_start("stock-watch", "Watch the stock of three articles", watch, by=by))
    return started


def _start(agent: str, goal: str, inputs: dict[str, Json], *, by: User) -> Run:
    run, _ = operations.start_run(Start(agent=agent, goal=goal, inputs=inputs, labels=DEMO), by=by)
    return run
