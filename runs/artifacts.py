"""Writer of artifacts: large outputs, stored once by their hash."""

import hashlib
import json

from runs import sql
from runs.agents import Json
from runs.journal import require_transaction
from runs.models import Artifact
from runs.sanitise import clean_json, clean_text

# Beyond this a result becomes an artifact, and the step keeps a preview.
INLINE_BYTES = 16_000
PREVIEW_CHARS = 2_000
_MEDIA_TYPE_CHARS = 100


def store(body: bytes, *, media_type: str) -> Artifact:
    """Store `body` once; the same bytes give the same artifact. It is not deleted before the commit."""
    require_transaction()
    digest = hashlib.sha256(body).hexdigest()
    while True:
        sql.execute(
            "INSERT INTO runs_artifact (digest, media_type, size, body, created_at) VALUES (%s, %s, %s, %s, lw_clock())"
            " ON CONFLICT (digest) DO NOTHING",
            # An agent's word for it may be anything, and must not cost the effect its result.
            [digest, clean_text(media_type)[:_MEDIA_TYPE_CHARS], len(body), body],
        )
        # None: it was there, and `deleteruns` deleted it since.
        for artifact in Artifact.objects.raw(
            "SELECT id, digest, media_type, size, created_at FROM runs_artifact WHERE digest = %s FOR KEY SHARE",
            [digest],
        ):
            return artifact


def shorten(value: Json) -> tuple[Json, Artifact | None]:
    """A result as the step keeps it: itself if it is small, else a preview that says so, and the artifact."""
    value = clean_json(value)
    text = json.dumps(value, ensure_ascii=False)
    body = text.encode("utf-8")
    if len(body) <= INLINE_BYTES:
        return value, None
    artifact = store(body, media_type="application/json")
    preview = value[:PREVIEW_CHARS] if isinstance(value, str) else text[:PREVIEW_CHARS]
    return {
        "shortened": True,
        "text": preview,
        "bytes": len(body),
        "artifact": f"sha256:{artifact.digest}",
    }, artifact
