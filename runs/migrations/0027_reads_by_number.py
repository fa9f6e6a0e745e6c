from pathlib import Path

from django.db import migrations


class Migration(migrations.Migration):
    """What `lw_read_on` does stays the same; going back leaves it."""

    dependencies = [("runs", "0026_fewer_messages")]

    operations = [
        migrations.RunSQL(
            sql=Path(__file__).with_suffix(".sql").read_text(),
            reverse_sql=migrations.RunSQL.noop,
        )
    ]
