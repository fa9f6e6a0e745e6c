from pathlib import Path

from django.db import migrations

_HERE = Path(__file__).with_suffix("")


class Migration(migrations.Migration):
    dependencies = [("runs", "0013_result_bytes")]

    operations = [
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        )
    ]
