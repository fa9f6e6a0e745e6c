import django.db.models.deletion
from django.db import migrations, models
from django.db.models.fields.json import KT


class Migration(migrations.Migration):
    dependencies = [("runs", "0017_looked_up_once")]

    operations = [
        migrations.AddField(model_name="event", name="agents", field=models.JSONField(default=list)),
        migrations.AlterField(
            model_name="event",
            name="step",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="events",
                to="runs.step",
            ),
        ),
        migrations.AddConstraint(
            model_name="event",
            constraint=models.UniqueConstraint(
                condition=models.Q(("step__isnull", False)), fields=("step",), name="event_once_per_step"
            ),
        ),
        migrations.AddConstraint(
            model_name="event",
            constraint=models.CheckConstraint(
                condition=models.Q(("step__isnull", True), ("matched_at__isnull", False), _connector="OR"),
                name="event_matched_has_time",
            ),
        ),
        migrations.AddIndex(
            model_name="step",
            index=models.Index(
                KT("result__event"),
                KT("result__key"),
                condition=models.Q(("state", "waiting"), ("waiting_for", "event")),
                name="step_by_event",
            ),
        ),
    ]
