// Reads instructions of one warp from standard input, one per line, "KIND WIDTH OFFSET x 32" with -1 for lanes that
// take no part, executes each in the emulator and prints "requests wavefronts ideal_wavefronts sectors ideal_sectors
// bank_conflicts".
#include <cstdio>
#include <cstring>
#include <string>

#include "moye/arch/copy_sm75.h"
#include "moye/arch/copy_sm80.h"
#include "moye/arch/launch.h"
#include "moye/arch/warp.h"
#include "moye/emu/guarded_buffer.h"

namespace {

using namespace moye;

enum class Kind { shared_load, shared_store, global_load, global_store, cp_async, ldmatrix };
char const* const kKinds[] = {"shared_load", "shared_store", "global_load", "global_store", "cp_async", "ldmatrix"};
constexpr int kBytes = 32 * 1024;  // of shared memory, and of the array in global memory

struct Offsets {
  int lanes[32];  // bytes
};

template <class T>
MOYE_KERNEL(32)
access_kernel(Kind kind, Offsets offsets, unsigned char* global) {
  int const offset = offsets.lanes[lane_id()];
  if (offset < 0) return;
  T value{};
  auto& in_shared = *reinterpret_cast<T*>(smem_base() + offset);
  auto& in_global = *reinterpret_cast<T*>(global + offset);
  switch (kind) {
    case Kind::shared_load:
      value = in_shared;
      break;
    case Kind::shared_store:
      in_shared = value;
      break;
    case Kind::global_load:
      value = in_global;
      break;
    case Kind::global_store:
      in_global = value;
      break;
    default:
      if constexpr (sizeof(T) >= 4) {
        SM80_CP_ASYNC_CACHEALWAYS<T>::copy(in_global, in_shared);
        cp_async_wait_all();
      }
  }
  asm volatile("" : : "r"(&value) : "memory");  // the load is not dead
}

MOYE_KERNEL(32)
ldmatrix_kernel(int matrices, Offsets offsets) {
  auto const& row = *reinterpret_cast<uint128_t const*>(smem_base() + offsets.lanes[lane_id()]);
  uint32_t r[4];
  if (matrices == 1) SM75_U32x1_LDSM_N::copy(row, r[0]);
  if (matrices == 2) SM75_U32x2_LDSM_N::copy(row, r[0], r[1]);
  if (matrices == 4) SM75_U32x4_LDSM_N::copy(row, r[0], r[1], r[2], r[3]);
}

Status execute(Kind kind, int width, Offsets const& offsets, emu::Stream* stream, unsigned char* global) {
  LaunchConfig const config{.grid = {1}, .block = {32}, .smem_bytes = kBytes};
  if (kind == Kind::ldmatrix) return launch_kernel(ldmatrix_kernel, config, stream, width, offsets);
  auto const launch = [&](auto* kernel) { return launch_kernel(kernel, config, stream, kind, offsets, global); };
  switch (width) {
    case 1:
      return launch(access_kernel<uint8_t>);
    case 2:
      return launch(access_kernel<uint16_t>);
    case 4:
      return launch(access_kernel<uint32_t>);
    case 8:
      return launch(access_kernel<uint64_t>);
    default:
      return launch(access_kernel<uint128_t>);
  }
}

}  // namespace

int main() {
  emu::GuardedBuffer global(kBytes);
  char word[32];
  int width;
  while (std::scanf("%31s %d", word, &width) == 2) {
    Offsets offsets;
    for (int& offset : offsets.lanes) {
      if (std::scanf("%d", &offset) != 1) return 2;
    }
    int kind = 0;
    while (kind < 6 && std::strcmp(kKinds[kind], word) != 0) ++kind;
    if (kind == 6) return 2;
    emu::Stream stream;
    stream.options.detect_races = false;  // lanes may store to the same place
    stream.options.count_transactions = true;
    stream.memory = {{global.data(), global.size(), "global", true}};
    if (Status const status = execute(static_cast<Kind>(kind), width, offsets, &stream, global.data()); !status.ok()) {
      std::printf("%s\n", status.message.c_str());
      return 1;
    }
    emu::Counters const& c = stream.counters;
    emu::Transactions all{.requests = c.ldmatrix,
                          .wavefronts = c.ldmatrix_wavefronts,
                          .ideal_wavefronts = c.ldmatrix_ideal_wavefronts,
                          .bank_conflicts = c.ldmatrix_wavefronts - c.ldmatrix_ideal_wavefronts};
    for (emu::Transactions const& part :
         {c.shared_load_transactions, c.shared_store_transactions, c.global_load_transactions,
          c.global_store_transactions, c.cp_async_transactions}) {
      all += part;
    }
    std::printf("%d %d %d %d %d %d\n", int(all.requests), int(all.wavefronts), int(all.ideal_wavefronts),
                int(all.sectors), int(all.ideal_sectors), int(all.bank_conflicts));
  }
  return 0;
}
