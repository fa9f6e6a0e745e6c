from pathlib import Path

import django.db.models.deletion
from django.db import migrations, models

_HERE = Path(__file__).with_suffix("")


class Migration(migrations.Migration):
    dependencies = [("runs", "0022_working_time")]

    operations = [
        migrations.AddIndex(model_name="workitem", index=models.Index(fields=["run", "id"], name="work_by_run")),
        migrations.AlterField(
            model_name="workitem",
            name="run",
            field=models.ForeignKey(
                db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="work", to="runs.run"
            ),
        ),
        migrations.CreateModel(
            name="KeptFold",
            fields=[
                (
                    "run",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="runs.run",
                    ),
                ),
                ("think", models.PositiveIntegerField()),
                ("rules", models.CharField(max_length=64)),
                ("state", models.TextField()),
            ],
        ),
        migrations.RunSQL(
            sql=_HERE.with_suffix(".sql").read_text(),
            reverse_sql=_HERE.with_suffix(".reverse.sql").read_text(),
        ),
    ]
