"""PostgreSQL over the embedded server, which starts when the first connection is made.

Used only where DATABASE_URL is not set. Everything else is that of any other PostgreSQL.
"""

from typing import Any

from django.conf import settings

from console.postgres import embedded_server
from runs.database import base


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        if not self.settings_dict["HOST"]:
            server = embedded_server(settings.DATA_DIR)
            server.ensure_running()
            return {**super().get_connection_params(), "host": server.host}
        return super().get_connection_params()
