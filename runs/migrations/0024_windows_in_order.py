from pathlib import Path

from django.db import migrations

_BEFORE = Path(__file__).with_name("0019_budget_queue.sql").read_text()
_SETTLE = _BEFORE[_BEFORE.index("-- End an attempt") :]
_BY_WINDOW = "ORDER BY l.window_id"
_BY_ALLOWANCE = "ORDER BY (SELECT aw.allowance_id FROM runs_allowancewindow aw WHERE aw.id = l.window_id)"
assert _BY_WINDOW in _SETTLE
_KEPT = (
    "ALTER FUNCTION lw_settle(bigint, text, numeric, bigint, bigint, bigint, bigint, text, jsonb, jsonb, boolean, boolean,"
    " text) SET enable_seqscan = off SET plan_cache_mode = force_generic_plan;"
)


class Migration(migrations.Migration):
    """Settling locks the windows of allowances in the order in which reserving does: by allowance.

    By their own numbers it was another order where a window of an older allowance is the newer one, and two trees of runs
    could wait for each other.
    """

    dependencies = [("runs", "0023_kept_folds")]

    operations = [
        migrations.RunSQL(sql=_SETTLE.replace(_BY_WINDOW, _BY_ALLOWANCE) + _KEPT, reverse_sql=_SETTLE + _KEPT),
    ]
