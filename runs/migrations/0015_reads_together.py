from pathlib import Path

from django.db import migrations

_HERE = Path(__file__).with_suffix("")
_ONE_BY_ONE = _HERE.with_name("0009_reads")


class Migration(migrations.Migration):
    dependencies = [("runs", "0014_short_locks")]

    operations = [
        migrations.RunSQL(
            sql=_ONE_BY_ONE.with_suffix(".reverse.sql").read_text() + _HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text() + _ONE_BY_ONE.with_suffix(".sql").read_text(),
        )
    ]
