import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0005_money"),
    ]

    operations = [
        migrations.CreateModel(
            name="SwitchAck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField()),
                (
                    "process",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="runs.process"),
                ),
                (
                    "switch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="acks", to="runs.switch"
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("switch", "process"), name="switch_ack_once")],
            },
        ),
    ]
