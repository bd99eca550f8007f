"""Bugs planted in how the Hopper kernels load operands: bytes, swizzles, tensor maps, CTAs that load for each other."""

from __future__ import annotations

from tests.emulated.mutants_sm90 import CLUSTER, COOPERATIVE, INIT, SHARED, C, Mutant, T, deadlock, race

STAGE_BYTES = "static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;"
MAPS = "    if (Status status = make_operand_maps<Operands>(args, &params.maps); !status.ok()) return status;\n"

MUTANTS = [
    # ---- bytes
    Mutant(
        "sm90_expects_the_bytes_of_b_alone",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace("A::kStageBytes + ", ""),
        r"phase 0 is complete while the \d+ bytes of the TMA load .* at sm90_cooperative\.cuh:\d+ are still in flight: "
        r"fewer bytes were expected",
    ),
    Mutant(
        "sm90_expects_the_bytes_of_a_alone",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace(" + B::kStageBytes", ""),
        deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and -8192 bytes missing", C),
    ),
    Mutant(
        "sm90_expects_too_many_bytes",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace(";", " + 16;"),
        deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and 16 bytes missing", C),
    ),
    Mutant(
        "sm90_expects_its_own_part_alone",
        CLUSTER,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace("B::kStageBytes", "B::kBoxBytes"),
        r"are still in flight: fewer bytes were expected|waits for -?\d+ bytes",
    ),
    # ---- descriptors
    Mutant(
        "sm90_swizzle_of_64_bytes",
        COOPERATIVE,
        T,
        "gmma_smem_atom<kGmmaMajor<kMajor>, T, 128>();",
        "gmma_smem_atom<kGmmaMajor<kMajor>, T, 64>();",
        "wrong",
    ),
    Mutant(
        "sm90_blocks_in_the_other_order",
        COOPERATIVE,
        T,
        "tile_to_shape(kAtom, kShape, Step<_2, _1, _3>{});",
        "tile_to_shape(kAtom, kShape);",
        "wrong",
        order="TN",
    ),
    Mutant(
        "sm90_stages_not_at_multiples_of_1024_bytes",
        COOPERATIVE,
        T,
        "  alignas(1024) ElementOfA<kConfig.dtype> a[",
        "  alignas(128) unsigned char before[128];\n  alignas(128) ElementOfA<kConfig.dtype> a[",
        r"wgmma by block \(0,0,0\) warp \d+ at sm90_cooperative\.cuh:\d+: the descriptor of A, 0x[0-9a-f]+, begins at "
        r"0x[0-9a-f]+, in row 1 of the swizzle",
    ),
    # ---- tensor maps
    Mutant(
        "sm90_tensor_map_kept_from_another_call",
        COOPERATIVE,
        SHARED,
        MAPS,
        "    static OperandMaps made;\n    static Status const status = make_operand_maps<Operands>(args, &made);\n"
        "    params.maps = made;\n",
        r"out of bounds: TMA load \(read\).* at sm90_cooperative\.cuh:\d+",
        options=("launches=2",),
    ),
    Mutant(
        "sm90_tensor_map_of_the_other_operand",
        COOPERATIVE,
        T,
        "return make_b(&maps->b, args.b, box_b);",
        "return make_b(&maps->b, args.a, box_b);",
        "wrong",
        sizes=(300, 300, 330),
    ),
    Mutant(
        "sm90_broadcast_operand_at_the_batch",
        COOPERATIVE,
        T,
        "strides.modes[i] == 0 ? 0 : matrix.modes[i];",
        "matrix.modes[i];",
        "wrong",
        sizes=(130, 66, 100),
        options=("batch=3", "broadcast=b"),
    ),
    Mutant(
        "sm90_batch_of_a_for_b",
        COOPERATIVE,
        T,
        "k, coords.b, multicast_b);",
        "k, coords.a, multicast_b);",
        "wrong",
        sizes=(130, 66, 100),
        options=("batch=3", "broadcast=a"),
    ),
    # ---- clusters
    Mutant(
        "sm90_mask_names_only_its_own_cta",
        CLUSTER,
        SHARED,
        "b.mask |= uint16_t(1u << (m + rank_n * kClusterM));",
        "b.mask = uint16_t(1u << rank);",
        deadlock(r"parity 0: 0 phases complete, 0 of 1 arrivals and [1-9]\d* bytes missing", C),
    ),
    Mutant(
        "sm90_mask_without_the_last_cta",
        CLUSTER,
        SHARED,
        "m < kClusterM; ++m) of.b.mask |=",
        "m < kClusterM - 1; ++m) of.b.mask |=",
        deadlock(r"parity 0: 0 phases complete, 0 of 1 arrivals and [1-9]\d* bytes missing", C),
    ),
    Mutant(
        "sm90_both_load_the_same_part",
        CLUSTER,
        SHARED,
        ".b = {.part = rank_m, .mask = 0}};",
        ".b = {.part = 0, .mask = 0}};",
        race("TMA multicast load", C, "TMA multicast load", C),
    ),
    Mutant(
        "sm90_first_barrier_of_the_cta_alone",
        CLUSTER,
        C,
        "    sync_cluster_behind_init<kCluster>();\n",
        "    sync_threads();\n",
        r"sm90_cooperative\.cuh:\d+: (mbarrier .* of block \(\d,0,0\): no (barrier|fence_mbarrier_init) lies between|"
        r"no mbarrier has been initialized)",
    ),
    Mutant(
        "sm90_fence_mbarrier_init_missing",
        COOPERATIVE,
        C,
        INIT,
        "",
        r"TMA load by .* at sm90_cooperative\.cuh:\d+: mbarrier .*: no fence_mbarrier_init lies between",
    ),
    Mutant(
        "sm90_exit_before_the_peer_arrived",
        CLUSTER,
        C,
        "    if constexpr (kCluster > 1) cluster_sync();\n",
        "",
        r"block \(\d+,0,0\) exits without having waited for .*, which needs its shared memory|has exited",
    ),
]
