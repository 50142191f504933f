# SPDX-License-Identifier: Apache-2.0
"""What of a REST API's description would break those who were written against an older one.

Requests of old callers must be taken as before, answers must hold what they held. An answer may
have more fields, and one of a few words more words.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")

Schema = dict[str, Any]


class Comparison:
    """An older description beside today's."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._under_way: set[tuple[str, str]] = set()

    def breaks(self) -> list[str]:
        """Everything that is not as it was, in words."""
        return list(self._paths())

    def _paths(self) -> Iterator[str]:
        for path, old_methods in self._old["paths"].items():
            for method, old in old_methods.items():
                where = f"{method.upper()} {path}"
                new = self._new["paths"].get(path, {}).get(method)
                if new is None:
                    yield f"{where} is gone"
                    continue
                yield from self._parameters(where, old, new)
                yield from self._bodies(where, old, new)
                yield from self._answers(where, old, new)

    def _parameters(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        before = {(each["in"], each["name"].lower()): each for each in old.get("parameters", ())}
        today = {(each["in"], each["name"].lower()): each for each in new.get("parameters", ())}
        for key, parameter in before.items():
            name = f"{where}, parameter {key[1]}"
            if key not in today:
                yield f"{name} is gone"
                continue
            if today[key].get("required") and not parameter.get("required"):
                yield f"{name} is required now"
            yield from self._taken(name, parameter.get("schema", {}), today[key].get("schema", {}))
        for key in today.keys() - before.keys():
            if today[key].get("required"):
                yield f"{where}, parameter {key[1]} is new and required"

    def _bodies(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        before, today = old.get("requestBody", {}), new.get("requestBody", {})
        if today.get("required") and not before.get("required"):
            yield f"{where} wants a body now"
        for kind, content in before.get("content", {}).items():
            if kind not in today.get("content", {}):
                yield f"{where} takes no {kind} any more"
                continue
            schema = today["content"][kind].get("schema", {})
            yield from self._taken(f"{where}, body", content.get("schema", {}), schema)

    def _answers(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        for status, before in old["responses"].items():
            name, today = f"{where}, answer {status}", new["responses"].get(status)
            if today is None:
                yield f"{name} is gone"
                continue
            for kind, content in before.get("content", {}).items():
                if kind not in today.get("content", {}):
                    yield f"{name} is no {kind} any more"
                    continue
                schema = today["content"][kind].get("schema", {})
                yield from self._given(name, content.get("schema", {}), schema)

    # what callers send

    def _taken(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        """Whatever was taken has to be taken."""
        pair = (f"taken {old.get('$ref', '')}", new.get("$ref", ""))
        if "$ref" in old and pair in self._under_way:
            return
        self._under_way.add(pair)
        old, new = self._resolved(self._old, old), self._resolved(self._new, new)
        alternatives = self._alternatives(new)
        for each in self._alternatives(old):
            found = [list(self._taken_as(where, each, other)) for other in alternatives]
            if all(found):
                yield from min(found, key=len)

    def _taken_as(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        old, new = self._resolved(self._old, old), self._resolved(self._new, new)
        if new.get("type") not in (None, old.get("type")):
            yield f"{where} is {new['type']} instead of {old.get('type')}"
            return
        gone = set(self._values(old)) - set(self._values(new)) if self._values(new) else set()
        if gone or (self._values(new) and not self._values(old)):
            yield f"{where} takes only {sorted(map(str, self._values(new)))}"
        for bound in _MOST:
            if bound in new and new[bound] < old.get(bound, float("inf")):
                yield f"{where} has {bound} {new[bound]} instead of {old.get(bound, 'none')}"
        for bound in _LEAST:
            if bound in new and new[bound] > old.get(bound, float("-inf")):
                yield f"{where} has {bound} {new[bound]} instead of {old.get(bound, 'none')}"
        if "pattern" in new and new["pattern"] != old.get("pattern"):
            yield f"{where} has the pattern {new['pattern']} instead of {old.get('pattern')}"
        if new.get("additionalProperties") is False is not old.get("additionalProperties"):
            yield f"{where} takes no other fields any more"
        for name in set(new.get("required", ())) - set(old.get("required", ())):
            yield f"{where}.{name} is required now"
        for name, schema in old.get("properties", {}).items():
            if name not in new.get("properties", {}):
                yield f"{where}.{name} is gone"
            else:
                yield from self._taken(f"{where}.{name}", schema, new["properties"][name])
        if "items" in old and "items" in new:
            yield from self._taken(f"{where}[]", old["items"], new["items"])

    # what they are answered

    def _given(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        """Whatever is given has to be what was given."""
        pair = (f"given {old.get('$ref', '')}", new.get("$ref", ""))
        if "$ref" in old and pair in self._under_way:
            return
        self._under_way.add(pair)
        old, new = self._resolved(self._old, old), self._resolved(self._new, new)
        alternatives = self._alternatives(old)
        for each in self._alternatives(new):
            found = [list(self._given_as(where, other, each)) for other in alternatives]
            if all(found):
                yield from min(found, key=len)

    def _given_as(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        old, new = self._resolved(self._old, old), self._resolved(self._new, new)
        if old.get("type") not in (None, new.get("type")):
            yield f"{where} is {new.get('type')} instead of {old['type']}"
            return
        if self._values(new) and (gone := set(self._values(old)) - set(self._values(new))):
            yield f"{where} is never {', '.join(sorted(map(str, gone)))} any more"
        for name in set(old.get("required", ())) - set(new.get("required", ())):
            yield f"{where}.{name} may be missing now"
        for name, schema in old.get("properties", {}).items():
            if name not in new.get("properties", {}):
                yield f"{where}.{name} is gone"
            else:
                yield from self._given(f"{where}.{name}", schema, new["properties"][name])
        if "items" in old and "items" in new:
            yield from self._given(f"{where}[]", old["items"], new["items"])

    @staticmethod
    def _resolved(document: Schema, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return schema

    @staticmethod
    def _alternatives(schema: Schema) -> list[Schema]:
        return list(schema.get("anyOf") or schema.get("oneOf") or [schema])

    @staticmethod
    def _values(schema: Schema) -> list[Any]:
        return list(schema.get("enum") or ([schema["const"]] if "const" in schema else []))
