from django.db import migrations, models

# What was derived before: as old as its oldest parent, and lasting no longer than any; from the top down, in rounds.
_INHERIT = """
DO $$
BEGIN
    UPDATE runs_fact SET own_max_age_s = coalesce(extended_from_s, max_age_s),
        max_age_s = coalesce(extended_from_s, max_age_s), extended_from_s = NULL WHERE derived_from <> '[]';
    FOR round IN 1..20 LOOP
        UPDATE runs_fact f SET observed_at = least(f.observed_at, n.oldest), verified_at = n.verified_at,
            max_age_s = least(f.own_max_age_s, extract(epoch FROM n.ends - n.verified_at)::float8)
        FROM (
            SELECT d.id, p.oldest, p.ends, CASE WHEN p.oldest IS NOT NULL THEN least(d.verified_at, p.oldest) END AS verified_at
            FROM runs_fact d
            CROSS JOIN LATERAL (
                SELECT CASE WHEN jsonb_array_length(d.derived_from) = count(*) FILTER (WHERE p.observed_at <= p.verified_at)
                            THEN min(p.verified_at) END AS oldest,
                    min(p.verified_at + make_interval(secs => p.max_age_s)) AS ends
                FROM runs_fact p WHERE p.run_id = d.run_id AND d.derived_from ? p.name AND p.id <> d.id
            ) p
            WHERE d.derived_from <> '[]'
        ) n
        WHERE f.id = n.id AND (f.verified_at, f.max_age_s) IS DISTINCT FROM
            (n.verified_at, least(f.own_max_age_s, extract(epoch FROM n.ends - n.verified_at)::float8));
        EXIT WHEN NOT FOUND;
    END LOOP;
END $$
"""


class Migration(migrations.Migration):
    dependencies = [
        ("runs", "0011_spend"),
    ]

    operations = [
        migrations.AddField(
            model_name="fact",
            name="own_max_age_s",
            field=models.FloatField(null=True),
        ),
        migrations.RunSQL(_INHERIT, migrations.RunSQL.noop),
    ]
