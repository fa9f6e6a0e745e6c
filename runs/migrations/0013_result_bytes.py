from django.db import migrations

# What the result of a step takes in a briefing at most, measured once: `<`, `>` and `&` take six bytes each there.
_FORWARD = """
ALTER TABLE runs_step ADD COLUMN result_bytes integer GENERATED ALWAYS AS (
    6 * octet_length(result::text) - 5 * octet_length(translate(result::text, '<>&', ''))
) STORED
"""
_BACK = "ALTER TABLE runs_step DROP COLUMN result_bytes"


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0012_derived_facts"),
    ]

    operations = [
        migrations.RunSQL(_FORWARD, _BACK),
    ]
