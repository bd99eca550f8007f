"""Parts of the difference between two kernels."""

from __future__ import annotations

import pytest

from jax_moye._bench.ladder import sources


def test_hunks(monkeypatch):
    files = {
        "one": ["// one: a", "same", "  old", "  end", "tail"],
        "two": ["// two: a", "same", "  new", "  end", "tail"],
    }
    monkeypatch.setattr(sources, "kernel_source", files.__getitem__)
    assert sources.hunk("one", "two", "same", "tail") == " same\n-  old\n+  new\n   end\n tail"  # the name is no change
    assert sources.hunk(None, "two", "new", "end") == "new\nend"
    for words in (("nowhere", "tail"), ("tail", "same")):
        with pytest.raises(LookupError, match="no part from a line with"):
            sources.hunk("one", "two", *words)
