"""Move a run as the engine would, as far as screens are concerned."""

from django.db import transaction

from runs import journal, lifecycle, notify
from runs.models import Run


def note(run: Run, why: str = "moved", *, hint: bool = True) -> None:
    """Commit an entry. `hint=False`: as by a process that died before it could tell anybody."""
    with transaction.atomic():
        journal.append("run.noted", run=lifecycle.lock(run.pk).pk, why=why)
        if not hint:
            transaction.get_connection().run_on_commit.clear()
            notify._topics.clear()
    notify.flush()
