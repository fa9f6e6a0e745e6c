"""The models that the rehearsal server answers for.

The names are those in the types of the anthropic SDK 2.14. The limits are this server's own: they are there to be
refused against, not to describe any real model.
"""

from dataclasses import dataclass

from runs.examples.model.values import JsonObject

NAMES = (
    "claude-fable-5-2",
    "claude-mythos-5-2",
    "claude-haiku-5-5",
    "claude-sonnet-5-5",
    "claude-fable-5-1",
    "claude-opus-5-5",
    "claude-mythos-5-1",
    "claude-sonnet-5",
    "claude-fable-5",
    "claude-mythos-5",
    "claude-opus-5",
    "claude-opus-4-8",
    "claude-opus-4-7",
    "claude-opus-4-6",
    "claude-sonnet-4-6",
    "claude-haiku-4-5",
    "claude-haiku-4-5-20251001",
    "claude-opus-4-5",
    "claude-opus-4-5-20251101",
    "claude-sonnet-4-5",
    "claude-sonnet-4-5-20250929",
)
DEPRECATED = {
    "claude-opus-4-5": "2027-01-22T00:00:00Z",
    "claude-opus-4-5-20251101": "2027-01-22T00:00:00Z",
    "claude-sonnet-4-5": "2026-11-30T00:00:00Z",
    "claude-sonnet-4-5-20250929": "2026-11-30T00:00:00Z",
}
# On these, tool_choice "any" and "tool" are errors, as the overview pages of the models say.
NO_FORCED_TOOLS = frozenset({"claude-opus-5-5", "claude-fable-5-1", "claude-sonnet-5-5"})
# On these, thinking cannot be disabled.
ALWAYS_THINKING = frozenset({"claude-opus-5-5", "claude-fable-5-1"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """One model by name, with the limits that requests are refused against (tokens)."""

    name: str
    max_input_tokens: int = 1_000_000
    max_tokens: int = 128_000

    def to_json(self) -> JsonObject:
        """Return the body of GET /v1/models/{id}."""
        words = self.name.removeprefix("claude-").split("-")
        retires = DEPRECATED.get(self.name)
        return {
            "type": "model",
            "id": self.name,
            "display_name": "Claude " + " ".join([words[0].capitalize(), ".".join(words[1:3])]) + " (rehearsal)",
            "created_at": "2026-01-01T00:00:00Z",
            "lifecycle": "deprecated" if retires else "active",
            "deprecated_at": "2026-10-01T00:00:00Z" if retires else None,
            "retires_at": retires,
            "line": words[0],
            "max_input_tokens": self.max_input_tokens,
            "max_tokens": self.max_tokens,
            "capabilities": None,
        }


def find_model(name: str) -> Model | None:
    """Return the model of that name, or none."""
    return Model(name=name) if name in NAMES else None
