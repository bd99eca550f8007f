"""The key of an attention's measurements: what a file has is what was written, or an error."""

from __future__ import annotations

import json

import pytest

from jax_moye._selection.attention_key import AttentionKey, is_attention, parse_attention

KEY = AttentionKey(
    sizes=(2, 4, 1, 128, 256, 64),
    dtype="bf16",
    diagonal=128,
    ds_parts=1,
    arrays=(("k", "bkhd"), ("o", "bqhd"), ("q", "bqhd"), ("v", "bkhd")),
    others=(("bfloat16", (2, 4, 128, 1)),),
)


def test_it_comes_back_from_json():
    raw = json.loads(json.dumps(KEY.to_dict()))
    assert is_attention(raw)
    assert parse_attention(raw) == KEY
    backwards = raw | {"arrays": dict(reversed(raw["arrays"].items()))}
    assert parse_attention(backwards) == KEY  # JSON's objects have no order
    assert not is_attention({"batch": 1})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sizes": [2, 4, 1, 128, 256]}, "six sizes"),
        ({"sizes": [2, 4, 1, 128, 0, 64]}, "six sizes"),
        ({"dtype": 16}, "no text"),
        ({"diagonal": "all"}, "no number"),
        ({"ds_parts": 3}, "neither"),
        ({"arrays": [["q", "bqhd"]]}, "no orders"),
        ({"arrays": {"q": 3}}, "no orders"),
        ({"others": {}}, "no dtypes"),
        ({"others": [["bfloat16"]]}, "no dtypes"),
        ({"scale": 1.0}, "other fields"),
    ],
    ids=str,
)
def test_what_is_no_attention(changed, why):
    with pytest.raises(ValueError, match=why):
        parse_attention(KEY.to_dict() | changed)
