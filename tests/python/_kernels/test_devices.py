"""The table of GPUs: what their data sheets say, which one is meant by a name, and GPUs that no table has."""

import json

import jax
import pytest

import jax_moye
from jax_moye._kernels.devices import DEVICES, find_device, of_jax
from jax_moye.layout.resources import ARCHS


@pytest.mark.parametrize(
    ("name", "dtype", "teraflops"),  # of the data sheets, dense
    [
        ("h200", "bf16", 989),
        ("h200", "e4m3", 1979),
        ("h100", "tf32", 495),
        ("a100", "f16", 312),
        ("a100", "s8", 624),
        ("a100", "f64", 19.5),
        ("a100", "f32", 19.5),
        ("l40s", "bf16", 362),
        ("l4", "f16", 121),
        ("rtx4090", "bf16", 165),
        ("rtx3090", "f16", 71),
        ("v100", "f16", 125),
        ("t4", "f16", 65),
        ("b200", "bf16", 2250),
        ("rtx5090", "bf16", 210),
    ],
)
def test_peaks_are_the_data_sheets(name, dtype, teraflops):
    assert DEVICES[name].flops(dtype) == pytest.approx(teraflops * 1e12, rel=0.01)


def test_devices_have_limits():
    for device in DEVICES.values():
        assert f"sm_{device.arch}" in ARCHS
        assert device.to_dict()["smem_per_cta"] == device.limits.smem_per_cta
        json.dumps(device.to_dict())


class FakeGpu:
    platform = "gpu"

    def __init__(self, kind, capability, cores):
        self.device_kind, self.compute_capability, self.core_count = kind, capability, cores


def test_gpus_of_this_process():
    assert of_jax(FakeGpu("NVIDIA H200", "9.0", 132)) is DEVICES["h200"]
    assert of_jax(FakeGpu("NVIDIA A100-SXM4-80GB", "8.0", 108)) is DEVICES["a100"]
    assert of_jax(FakeGpu("NVIDIA L40S", "8.9", 142)) is DEVICES["l40s"]
    assert of_jax(FakeGpu("Tesla V100-SXM2-16GB", "7.0", 80)) is DEVICES["v100"]
    unknown = of_jax(FakeGpu("NVIDIA Novelty", "9.0", 77))
    assert (unknown.arch, unknown.multiprocessors) == (90, 77)
    slice_of_one = of_jax(FakeGpu("NVIDIA H200 MIG 1g.18gb", "9.0", 16))
    assert slice_of_one.multiprocessors == 16
    found = jax_moye.explain((64, 64), (64, 64), "bfloat16", implementation="moye", device=unknown)[0]
    assert found.resources()["slots"] % 77 == 0
    assert not found.is_calibrated
    assert "which config is first, and no more" in str(found)


def test_which_device_is_meant(monkeypatch):
    assert find_device("H200") is find_device(90) is find_device("sm_90a") is DEVICES["h200"]
    assert find_device("NVIDIA H100 PCIe") is DEVICES["h100-pcie"]
    with jax_moye.cuda_target(80):
        assert find_device() is DEVICES["a100"]
    with pytest.raises(TypeError, match="is a device of cpu"):
        find_device(jax.devices("cpu")[0])


@pytest.mark.parametrize("unknown", ["x", "h2", 91])
def test_an_unknown_gpu_is_named_and_the_known_ones_listed(unknown):
    with pytest.raises(ValueError, match=f"device {unknown!r} is not known; names are h200, .* or an architecture"):
        find_device(unknown)


@pytest.mark.parametrize("wrong", [9.0, True, b"h200"], ids=repr)
def test_what_is_no_device(wrong):
    with pytest.raises(TypeError, match=r"device is a name such as 'h200', an architecture such as 90, or a jax"):
        find_device(wrong)


def test_a_device_is_itself():
    assert find_device(DEVICES["l4"]) is DEVICES["l4"]
    assert DEVICES["l4"].flops("no dtype") is None
