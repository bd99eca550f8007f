"""The ladder of kernels, from simt_tiled up: what each rung does to memory, and its instructions.

Counted by the emulator, on any machine, at one shape for all rungs: shared-memory wavefronts and bank conflicts, global
sectors, barriers, instructions per warp. Timed by the protocol of the benchmark where JAX sees a GPU: all rungs
alternate in one process, and each is compared with the rung before.

A rung is one kernel, shown by one config of it: of the dtype asked for (or of the nearest that the kernel has, marked
`*`) that takes the operands' order, with the widest loads, the usual accumulator, no cluster, a tile of 128x128 if
there is one, and of those the first.

The efficiency against the number of stages (`--stages`) is measured on a GPU. Without one it is a model,
`stage_model`: a k-tile's loads are under way for `latency` clocks, and a CTA multiplies no k-tile before it has landed.
"""

from jax_moye._bench.ladder.chart import stages_chart as stages_chart
from jax_moye._bench.ladder.counting import SHAPE as SHAPE
from jax_moye._bench.ladder.counting import compare as compare
from jax_moye._bench.ladder.counting import count as count
from jax_moye._bench.ladder.counting import trace as trace
from jax_moye._bench.ladder.rung_configs import RUNGS as RUNGS
from jax_moye._bench.ladder.rung_configs import rungs as rungs
from jax_moye._bench.ladder.rung_configs import stage_configs as stage_configs
from jax_moye._bench.ladder.sources import hunk as hunk
from jax_moye._bench.ladder.stages import LATENCY as LATENCY
from jax_moye._bench.ladder.stages import stage_model as stage_model
