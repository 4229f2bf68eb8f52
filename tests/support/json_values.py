"""What a JSON file may hold in any place."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["json_values"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2000) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
