import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """The key of a start outlives its run: a start with it is not a new one."""

    dependencies = [("runs", "0026_fewer_messages")]

    operations = [
        migrations.AlterField(
            model_name="startrequest",
            name="run",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="+",
                to="runs.run",
            ),
        ),
    ]
