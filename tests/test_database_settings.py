import pytest
from django.db import connection


@pytest.mark.django_db
def test_the_tests_run_on_a_real_postgresql_of_their_own() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version_num')::int, current_database()")
        version, name = cursor.fetchone()
    assert version >= 160000
    assert name.startswith("test_")
