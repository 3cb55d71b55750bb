"""Values for Hypothesis: what the codec must carry."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from hypothesis import strategies as st

short_text = st.text(max_size=60)
octets = st.integers(0, 255)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=40),
    st.binary(max_size=40),
    st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda t: t.replace(microsecond=0, tzinfo=UTC)),
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 20)).map(lambda d: Decimal(d[0]).scaleb(-d[1])),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(short_text, inner, max_size=4),
    max_leaves=12,
)
tables = st.dictionaries(short_text, values, max_size=5)

properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short_text,
        "content_encoding": short_text,
        "headers": tables,
        "delivery_mode": octets,
        "priority": octets,
        "correlation_id": short_text,
        "reply_to": short_text,
        "expiration": short_text,
        "message_id": short_text,
        "timestamp": st.integers(0, 2**32 - 1),
        "type": short_text,
        "user_id": short_text,
        "app_id": short_text,
    },
)
