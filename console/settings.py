"""Settings, from the environment only. README.md lists what an installation sets; `console/env.py` gives them types.

Importing this module opens no connection and starts no server: type checks and `--help` import it too.
The embedded PostgreSQL starts with the first connection (`console/database/base.py`).
"""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from django.utils.csp import CSP

from console.databases import read_database_url
from console.env import process_environment as env
from console.keyfile import read_or_make_secret_key
from console.running import find_running

BASE_DIR = Path(__file__).resolve().parent.parent
LOOPBACK_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

# Longwatch -------------------------------------------------------------------------------------------

DATA_DIR = env.read_folder("LONGWATCH_DATA", BASE_DIR / ".data")
# What `up` runs on this data folder says where it is, whatever port it was given.
_RUNNING = find_running(DATA_DIR)
PUBLIC_URL = env.read_url("LONGWATCH_URL", _RUNNING.url if _RUNNING else "http://127.0.0.1:8000")
ANTHROPIC_API_KEY = env.read_optional("ANTHROPIC_API_KEY")
ANTHROPIC_BASE_URL = env.read_optional_url("ANTHROPIC_BASE_URL")
ENVIRONMENT = env.read_text("LONGWATCH_ENVIRONMENT", "production" if ANTHROPIC_API_KEY else "rehearsal")
SHOP_URL = env.read_optional_url("LONGWATCH_SHOP_URL") or ""
LEASE_S = env.read_seconds("LONGWATCH_LEASE_S", 15.0, least=0.0, most=86_400.0)
GRACE_S = env.read_seconds("LONGWATCH_GRACE_S", 10.0, least=0.0, most=86_400.0)
WORKERS = env.read_whole("LONGWATCH_WORKERS", 2, least=1, most=64)
UNDO_S = env.read_seconds("LONGWATCH_UNDO_S", 10.0, least=0.0, most=600.0)
SELF_APPROVAL = env.read_flag("LONGWATCH_SELF_APPROVAL", True)
# What tools sign in with (runs/vault.py). Django blanks out settings of such a name on its error pages.
SECRETS = env.read_all("LONGWATCH_CREDENTIAL_")
SECRETS_DIR = env.read_folder("LONGWATCH_CREDENTIALS", Path()) if env.read_optional("LONGWATCH_CREDENTIALS") else None
SMTP_URL = env.read_optional_mail_url("LONGWATCH_SMTP_URL") or ""
MAIL_FROM = env.read_text("LONGWATCH_MAIL_FROM", "longwatch@localhost")
WEBHOOK_URL = env.read_optional_url("LONGWATCH_WEBHOOK_URL") or ""
WEBHOOK_SECRET = env.read_text("LONGWATCH_WEBHOOK_SECRET")
SLACK_URL = env.read_optional_url("LONGWATCH_SLACK_URL") or ""
RUN_ZONE = env.read_zone("LONGWATCH_ZONE", "UTC")
FAIL_POINT = env.read_text("LONGWATCH_FAIL_POINT")

# Which kind of process this is decides how it uses its database connections.
_COMMAND = sys.argv[1] if len(sys.argv) > 1 and Path(sys.argv[0]).name == "manage.py" else ""
PROCESS_NAME = env.read_text("LONGWATCH_PROCESS", _COMMAND)
ENGINE_PROCESS = PROCESS_NAME in {"cluster", "modelgateway", "toolprocess"}

# Django ----------------------------------------------------------------------------------------------

DEBUG = env.read_flag("LONGWATCH_DEBUG", False)
SECRET_KEY = env.read_text("LONGWATCH_SECRET_KEY") or read_or_make_secret_key(DATA_DIR)
_PUBLIC = urlsplit(PUBLIC_URL)
ALLOWED_HOSTS = env.read_names("LONGWATCH_ALLOWED_HOSTS", [*LOOPBACK_HOSTS, _PUBLIC.hostname or ""])
CSRF_TRUSTED_ORIGINS = [f"{_PUBLIC.scheme}://{_PUBLIC.netloc}"]

DATABASES = {
    "default": read_database_url(
        env.read_optional("DATABASE_URL"), engine_process=ENGINE_PROCESS, process_name=PROCESS_NAME
    )
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

OWN_APPS = env.read_apps("LONGWATCH_APPS")  # apps with agents of one's own
_ENGINE_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_q",
    "runs",
    "runs.examples",
    *OWN_APPS,
]
# Processes of the engine answer no requests, and start in little more than half the time without what does.
INSTALLED_APPS = (
    _ENGINE_APPS
    if ENGINE_PROCESS
    else [
        "console.apps.AdminConfig",
        "django.contrib.sessions",
        "django.contrib.messages",
        "whitenoise.runserver_nostatic",
        "django.contrib.staticfiles",
        "django_htmx",
        "ninja",
        "console",  # before django.contrib.auth, one of whose commands it replaces
        *_ENGINE_APPS,
    ]
)

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    # A page that nobody thought about needs a sign-in.
    "console.sign_in_required.SignInRequired",
    "console.live.cursor.CursorMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "console.urls"
ASGI_APPLICATION = "console.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "console.context.name_environment",
                "console.context.frame_page",
            ],
        },
    },
]

LANGUAGE_CODE = "en"
USE_I18N = False
USE_TZ = True
TIME_ZONE = "UTC"
FORMAT_MODULE_PATH = ["console.formats"]

# WhiteNoise serves straight from static/ and the apps: there is no collecting step to forget after an update.
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

# People and their sessions ---------------------------------------------------------------------------

LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "sign-in"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]

# Follows the address that people use: over plain http on loopback a secure cookie would never come back.
_HTTPS = _PUBLIC.scheme == "https"
SESSION_COOKIE_SECURE = _HTTPS
CSRF_COOKIE_SECURE = _HTTPS
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_HSTS_SECONDS = 3600 * 24 * 30 if _HTTPS else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# Nothing inline anywhere: text that comes from a model or a customer can then never become a script or a style.
SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
}

# Live pages ------------------------------------------------------------------------------------------

LIVE_HEARTBEAT_S = 15.0  # a page takes the server for frozen after two and a half; sessions are looked at as often
LIVE_STREAM_S = 15 * 60.0  # then the page comes back, and its session and rights are read anew

# The executor ----------------------------------------------------------------------------------------

# The queue is the run table (runs/cluster.py): django-q2 only runs the processes, so nothing here may
# repeat, prune or time out work. A worker watches its own tool process, and its lease is the timeout;
# django-q2 insists on a timeout below its retry, so both are a day.
Q_CLUSTER = {
    "name": "longwatch",
    "label": "Longwatch",
    "orm": "default",
    "broker_class": "runs.cluster.RunBroker",
    "workers": WORKERS,
    "timeout": 86_400,
    "retry": 90_000,
    "ack_failures": False,
    "max_attempts": 0,
    "save_limit": -1,
    "recycle": 100_000,
    "bulk": 1,
    "queue_limit": 1,
    "poll": 0.2,
    "guard_cycle": 0.5,
    "scheduler": False,
    "catch_up": False,
}

# One line per event to stderr; whoever runs the processes decides where the lines go.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"()": "console.logs.OneLine"}},
    "filters": {"without_readiness": {"()": "console.logs.WithoutReadiness"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["without_readiness"]}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        "django": {"handlers": [], "propagate": True},
        "django.server": {"handlers": [], "propagate": True},
        "django-q": {"handlers": [], "level": "WARNING", "propagate": True},
        "httpx2": {"level": "WARNING"},
        "anthropic": {"level": "WARNING"},
    },
}
