from pathlib import Path

from django.db import migrations

_HERE = Path(__file__).with_suffix("")
_BEFORE = _HERE.with_name("0019_budget_queue").with_suffix(".sql").read_text()
_RESERVE = _BEFORE[_BEFORE.index("-- Reserve for an attempt") : _BEFORE.index("-- End an attempt")]
_KEPT = (
    "ALTER FUNCTION lw_reserve(bigint, bigint, numeric, bigint, bigint, bigint, bigint, text, jsonb, text, boolean)"
    " SET enable_seqscan = off SET plan_cache_mode = force_generic_plan;"
)


class Migration(migrations.Migration):
    dependencies = [("runs", "0021_one_check")]

    operations = [
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_RESERVE + _KEPT + "DROP FUNCTION lw_overworked(bigint, bigint[]);",
        )
    ]
