# SPDX-License-Identifier: Apache-2.0
"""Makes JSON schemas of the OpenAI API's own specification, to check answers with."""

import lzma


def with_null(schema):
    """OpenAPI 3.1 has JSON Schema's null; some parts of the specification still say it as 3.0 did, with `nullable`."""
    if isinstance(schema, list):
        return [with_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: with_null(part) for name, part in schema.items() if name != "nullable"}
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


def read_schemas(path, yaml):
    """{"components": {"schemas": ...}}"""
    document = yaml.load(lzma.decompress(path.read_bytes()), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert document["openapi"].startswith("3.1"), "of 3.0 more than `nullable` needs translating"
    return {"components": {"schemas": with_null(document["components"]["schemas"])}}
