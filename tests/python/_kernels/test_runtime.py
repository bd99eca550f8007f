"""What jax_moye takes the installed jaxlib to be able to do."""

from __future__ import annotations

import jax
import pytest

from jax_moye._kernels import ffi, runtime


@pytest.mark.parametrize(("minor", "records"), [(1, True), (2, False), (None, False)])
def test_which_jaxlibs_record(monkeypatch, tmp_path, minor, records):
    folder = tmp_path / "xla" / "ffi" / "api"
    folder.mkdir(parents=True)
    if minor is not None:
        macro = "#define XLA_FFI_Extension_Record_{}Version {}\n"
        (folder / "record_c_api.h").write_text(macro.format("Major", 0) + macro.format("Minor", minor))
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    runtime.records_calls.cache_clear()
    try:
        assert runtime.records_calls() is records
    finally:
        runtime.records_calls.cache_clear()


def test_calls_are_recorded_unless_somebody_forbids_it(monkeypatch):
    monkeypatch.setattr(runtime, "records_calls", lambda: True)
    monkeypatch.delenv("JAX_MOYE_RECORD_CALLS", raising=False)
    assert ffi.records_calls()
    monkeypatch.setenv("JAX_MOYE_RECORD_CALLS", "0")
    assert not ffi.records_calls()
    monkeypatch.setenv("JAX_MOYE_RECORD_CALLS", "1")
    assert ffi.records_calls()
    monkeypatch.setattr(runtime, "records_calls", lambda: False)
    assert not ffi.records_calls()
