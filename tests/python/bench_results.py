"""Results of a benchmark for the tests of what shows them."""

from __future__ import annotations


def measured(name, ratio, regime="large"):
    sizes = {"batch": 1, "m": 64, "n": 64, "k": 64, "layout": "NN", "dtype": "bf16"}
    return {"id": name, "regime": regime, "correct": True, "ratio": ratio, "ratio_ci": [ratio, ratio], **sizes}


def on_h200(name, ratio, us, config="sm90_pingpong_bf16_64x64x64_s8_a16", **more):
    result = measured(name, ratio) | {"config": config, **more}
    flops = 2 * result["batch"] * result["m"] * result["n"] * result["k"]
    return result | {"us": us, "tflops": flops / us / 1e6, "baselines": {"xla": us * ratio}, "best_baseline": "xla"}


def report(*results, gpu="NVIDIA H200"):
    head = {"gpu": gpu, "jax": "0.11.2", "commit": "abc", "date": "2026-01-01T00:00:00Z", "emulated": False}
    return head | {"rows": list(results), "not_run": []}


def three():
    square = {"m": 4096, "n": 4096, "k": 4096}
    return [
        on_h200("A1", 2.0, 200.0, **square),
        on_h200("H2", 0.5, 500.0, "sm90_cooperative_tf32_128x128x32_s5_a4", dtype="f32", **square),
        on_h200("S1", 1.0, 100.0, regime="own", epilogue="bias+gelu", **square),
    ]


def arm(ms, **more):
    found = {"ms": ms, "ms_ci": [ms, ms], "worst_ms": 1.25 * ms, "ratio": 4.0 / ms, "ratio_ci": [3.9 / ms, 4.1 / ms]}
    found |= {"lower_s": 0.5, "compile_s": 2.5, "kernels": 30, "ours": 0, "written_bytes": 3_000_000}
    return found | {"memory_bytes": 5_000_000, "temporary_bytes": 1_000_000} | more


def rewrite(takes_in, count, computed_by, us, xla_us, **more):
    won = None if us is None else count * (xla_us - us) if computed_by == "moye" else 0.0
    row = {"product": "64x48x32 NN bf16", "what": "mk,kn->mn", "takes_in": takes_in, "count": count}
    return (
        row
        | {"computed_by": computed_by, "us": us, "xla_us": xla_us, "lead": 1.1, "timed": "cache"}
        | {
            "won_us": won,
            **more,
        }
    )


def program_run(**more):
    """A run of `bench --program`."""
    ways = {
        "xla": arm(4.0),
        "intercept": arm(4.0, ours=3, difference=0.01),
        "optimize": arm(3.2, ours=3, kernels=24, difference=0.02, host_bound=True),
    }
    rewrites = [
        rewrite("bias, silu", 8, "moye", 20.0, 45.0),
        rewrite("c", 4, "xla", 30.0, 30.0),
        rewrite("bias", 2, "moye", None, None, lead=None, timed=None),
        rewrite("", 3, "moye", 10.0, 15.0),
        rewrite("", 6, "xla", None, None, lead=None, timed=None),
    ]
    not_run = [{"id": "products", "why": "no kernel of ours", "is_wrong": False}]
    run = {"program": "train", "sizes": "layers 2, bfloat16", "about": "a step", **ways, "rewrites": rewrites}
    return run | {"not_run": not_run, "notes": ["a note"]} | more


def programs(*runs):
    head = {"gpu": "NVIDIA H200", "jax": "0.11.2", "commit": "abc", "date": "2026-01-01T00:00:00Z", "emulated": False}
    return {"about": "whole programs", "how": "in turns"} | head | {"protocol": {}, "runs": list(runs), "not_run": []}
