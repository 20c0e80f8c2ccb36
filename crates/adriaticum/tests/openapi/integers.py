"""Writes integers as such: to JSON Schema 12.0 is one, too, and Schemathesis makes use of it; to this API it is not."""

import schemathesis


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict):
        tokens = body.get("max_tokens")
        if isinstance(tokens, float) and tokens.is_integer():
            return body | {"max_tokens": int(tokens)}
    return body
