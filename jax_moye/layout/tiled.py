"""TiledCopy and TiledMma: an atom repeated over the threads and values of a tile, and one thread's part of a tensor.

Everything here is layouts: partitions of a layout are a layout and an offset, partitions of a `Tensor` are Tensors.

>>> from jax_moye.layout.atoms import CopyAtom
>>> copy = make_tiled_copy(CopyAtom("UniversalCopy<double>", "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
>>> copy
TiledCopy: 6 threads, tile (4,9), UniversalCopy<double>
>>> copy.get_slice(1).partition_S("(4,9):(1,4)")
(Layout('((1,(2,3)),1,1):((0,(1,4)),0,0)'), 12)
"""

from jax_moye.layout.tiled_copy import ThrCopy as ThrCopy
from jax_moye.layout.tiled_copy import TiledCopy as TiledCopy
from jax_moye.layout.tiled_copy import make_cotiled_copy as make_cotiled_copy
from jax_moye.layout.tiled_copy import make_tiled_copy as make_tiled_copy
from jax_moye.layout.tiled_copy import make_tiled_copy_A as make_tiled_copy_A
from jax_moye.layout.tiled_copy import make_tiled_copy_B as make_tiled_copy_B
from jax_moye.layout.tiled_copy import make_tiled_copy_C as make_tiled_copy_C
from jax_moye.layout.tiled_copy import make_tiled_copy_D as make_tiled_copy_D
from jax_moye.layout.tiled_copy import make_tiled_copy_S as make_tiled_copy_S
from jax_moye.layout.tiled_mma import ThrMma as ThrMma
from jax_moye.layout.tiled_mma import TiledMma as TiledMma
from jax_moye.layout.tiled_mma import make_tiled_mma as make_tiled_mma
