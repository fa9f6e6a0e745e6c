import django.db.models.deletion
from django.db import migrations, models

from runs.migrations._together import TogetherMigration


class Migration(TogetherMigration):
    dependencies = [("runs", "0016_kept_plans")]

    operations = [
        migrations.AlterField(
            model_name="attempt",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="attempts",
                to="runs.run",
            ),
        ),
        migrations.AlterField(
            model_name="journalentry",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="journal",
                to="runs.run",
            ),
        ),
        migrations.AlterField(
            model_name="ledgerentry",
            name="budget",
            field=models.ForeignKey(
                db_constraint=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="entries",
                to="runs.budget",
            ),
        ),
        migrations.AlterField(
            model_name="ledgerentry",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="ledger",
                to="runs.run",
            ),
        ),
    ]
