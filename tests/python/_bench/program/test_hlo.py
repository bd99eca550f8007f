"""What a program's text says of it: each kind of instruction, loops, graphs, updates in place; compiled programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jax_moye
from jax_moye._bench.program import hlo
from jax_moye._bench.program.hlo import Work

LOOP = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(bf16[8,16]{1,0})->bf16[8,16]{1,0}}

%update (p.0: s32[], p.1: f32[3,8,16], p.2: f32[8,16]) -> (f32[3,8,16], bf16[8,16]) {
  %p.0 = s32[] parameter(0)
  %p.1 = f32[3,8,16]{2,1,0} parameter(1)
  %p.2 = f32[8,16]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %one = f32[1,8,16]{2,1,0} bitcast(%p.2)
  %put = f32[3,8,16]{2,1,0} dynamic-update-slice(%p.1, %one, %p.0, %zero, %zero)
  %narrow = bf16[8,16]{1,0} convert(%p.2), metadata={op_name="jit(f)/while/body" stack_frame_id=7}
  ROOT %both = (f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) tuple(%put, %narrow)
}

%body (state: (s32[], f32[3,8,16], bf16[8,16])) -> (s32[], f32[3,8,16], bf16[8,16]) {
  %state = (s32[], f32[3,8,16]{2,1,0}, /*index=2*/bf16[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %kept = f32[3,8,16]{2,1,0} get-tuple-element(%state), index=1
  %x = bf16[8,16]{1,0} get-tuple-element(%state), index=2
  %gemm = (f32[8,16]{1,0}, s8[33554432]{0}) custom-call(%x, %x), custom_call_target="__cublas$gemm"
  %sums = f32[8,16]{1,0} get-tuple-element(%gemm), index=0
  %put_fusion = (f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) fusion(%i, %kept, %sums), kind=kLoop, calls=%update
  ROOT %next = (s32[], f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) tuple(%i, %put_fusion, %x)
}

%condition (state.1: (s32[], f32[3,8,16], bf16[8,16])) -> pred[] {
  %state.1 = (s32[], f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%i.1, %i.1), direction=LT
}

ENTRY %main (x.1: bf16[8,16]) -> bf16[8,16] {
  %x.1 = bf16[8,16]{1,0} parameter(0)
  %start = s32[] constant(0)
  %room = f32[3,8,16]{2,1,0} custom-call(), custom_call_target="AllocateBuffer"
  %first = (s32[], f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) tuple(%start, %room, %x.1)
  %loop = (s32[], f32[3,8,16]{2,1,0}, bf16[8,16]{1,0}) while(%first), condition=%condition, body=%body, TRIPS
  ROOT %out = bf16[8,16]{1,0} get-tuple-element(%loop), index=2
}
"""
A_TURN = 8 * 16 * 4 + (8 * 16 * 4 + 8 * 16 * 2) + 1  # sums; the part that is new, and the narrow copy; a boolean


def test_a_loop_counts_as_often_as_it_turns():
    known = LOOP.replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0"}}')
    assert hlo.work_of(known) == Work(9, 0, 3 * A_TURN, True)
    assert hlo.work_of(LOOP.replace(", TRIPS", "")) == Work(3, 0, A_TURN, False)


GRAPH = """\
HloModule jit_g

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%sliced (q: bf16[2,8,8]) -> (bf16[8,8], u8[512]) {
  %q = bf16[2,8,8]{2,1,0} parameter(0)
  %part = bf16[1,8,8]{2,1,0} slice(%q), slice={[0:1], [0:8], [0:8]}
  %flat = bf16[8,8]{1,0} bitcast(%part)
  %call.1 = (bf16[8,8]{1,0}, u8[512]{0}) custom-call(%flat, %flat), custom_call_target="jax_moye_gemm_v1"
  %result = bf16[8,8]{1,0} get-tuple-element(%call.1), index=0
  %workspace = u8[512]{0} get-tuple-element(%call.1), index=1
  ROOT %pair = (bf16[8,8]{1,0}, u8[512]{0}) tuple(%result, %workspace)
}

%command_buffer (x: bf16[8,8], y: bf16[2,8,8]) -> (bf16[8,8], bf16[8,8]) {
  %x = bf16[8,8]{1,0} parameter(0)
  %y = bf16[2,8,8]{2,1,0} parameter(1)
  %ours = (bf16[8,8]{1,0}, u8[4096]{0}, bf16[8,8]{1,0}) custom-call(%x, %x), custom_call_target="jax_moye_gemm_v1", \
api_version=API_VERSION_TYPED_FFI, backend_config={config = "sm90_x", name = "a (b"}
  %wrapped = (bf16[8,8]{1,0}, u8[512]{0}) fusion(%y), kind=kCustom, calls=%sliced
  %d = bf16[8,8]{1,0} get-tuple-element(%ours), index=0
  ROOT %two = (bf16[8,8]{1,0}, bf16[8,8]{1,0}) tuple(%d, %d)
}

%branch_a (x.2: bf16[8,8]) -> f32[] {
  %x.2 = bf16[8,8]{1,0} parameter(0)
  %zero = f32[] constant(0)
  ROOT %total = f32[] reduce(%x.2, %zero), dimensions={0,1}, to_apply=%add
}

%branch_b (x.3: bf16[8,8]) -> f32[] {
  %x.3 = bf16[8,8]{1,0} parameter(0)
  ROOT %none = f32[] constant(0)
}

%async (x.4: bf16[8,8]) -> bf16[8,8] {
  %x.4 = bf16[8,8]{1,0} parameter(0)
  ROOT %copied = bf16[8,8]{1,0} copy(%x.4)
}

ENTRY %main.1 (x.5: bf16[8,8], y.5: bf16[2,8,8], which: s32[]) -> f32[] {
  %x.5 = bf16[8,8]{1,0} parameter(0)
  %y.5 = bf16[2,8,8]{2,1,0} parameter(1)
  %which = s32[] parameter(2)
  %call = (bf16[8,8]{1,0}, bf16[8,8]{1,0}) call(%x.5, %y.5), to_apply=%command_buffer
  %d.1 = bf16[8,8]{1,0} get-tuple-element(%call), index=0
  %begun = ((bf16[8,8]{1,0}), bf16[8,8]{1,0}, u32[]) async-start(%d.1), calls=%async
  %ended = bf16[8,8]{1,0} async-done(%begun)
  %sent = (bf16[8,8]{1,0:S(5)}, bf16[8,8]{1,0}, u32[]) copy-start(%ended)
  %there = bf16[8,8]{1,0:S(5)} copy-done(%sent)
  %called = ((bf16[8,8]{1,0}), (bf16[8,8]{1,0}, u8[64]{0}), u32[]) custom-call-start(%ended), \
custom_call_target="jax_moye_grouped_gemm_v1"
  %back = (bf16[8,8]{1,0}, u8[64]{0}) custom-call-done(%called)
  ROOT %which_one = f32[] conditional(%which, %ended, %ended), branch_computations={%branch_a, %branch_b}
}
"""


def test_graphs_branches_and_what_runs_beside():
    square = 8 * 8 * 2
    # Ours with what is kept for gradients, ours within a fusion, a copy in each of two ways, ours beside, a reduction.
    assert hlo.work_of(GRAPH) == Work(6, 3, (2 + 1 + 1 + 1 + 1) * square + 4)


@pytest.mark.parametrize(
    ("array", "size"),
    [("bf16[8,16]", 256), ("f32[]", 4), ("pred[7]", 7), ("s4[5]", 3), ("f8e4m3fn[10]", 10), ("c64[2]", 16)],
)
def test_sizes(array, size):
    assert hlo.size(array) == size


def test_what_is_no_program():
    with pytest.raises(ValueError, match="no program in HLO"):
        hlo.work_of("module @jit_f {}")


def work_of(fun, *args):
    with jax.default_device(jax.devices("cpu")[0]):
        return hlo.work_of(jax.jit(fun).lower(*args).compile().as_text())


def test_a_compiled_loop():
    def loop(length):
        def fun(x, w):
            return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x), x, jnp.stack([w] * length))

        return work_of(fun, jnp.ones((8, 64)), jnp.ones((64, 64)))

    three, six, nine = loop(3), loop(6), loop(9)
    assert three.is_exact
    assert nine.kernels - six.kernels == six.kernels - three.kernels >= 3
    assert three.written_bytes >= 3 * 8 * 64 * 4


def test_a_compiled_kernel_of_ours():
    x = jnp.ones((16, 32), jnp.bfloat16)

    def twice(x):
        return jax_moye.matmul(jax_moye.matmul(x, x.T, interpret=True), x, interpret=True)

    found = work_of(twice, x)
    assert found.ours == 2
    assert found.kernels >= 2
    assert work_of(jnp.sin, x).ours == 0
