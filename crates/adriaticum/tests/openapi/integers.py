"""Writes integers without a fraction: in JSON Schema, and so for Schemathesis, 12.0 is an integer; in this API it is not."""

import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        tokens = body.get("max_tokens")
        if isinstance(tokens, float) and tokens.is_integer():
            return body | {"max_tokens": int(tokens)}
    return body
