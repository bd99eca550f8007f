// What the race checker remembers of shared memory (race.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace moye::emu {

/// The last write to the bytes of `mask`: by which agent, its how-manieth event, at which site.
struct WriteRecord {
  uint32_t event;
  uint16_t agent;
  uint16_t site;
  uint8_t mask;
};

/// Reads of the bytes of `mask` since then: by the agents 32 * group + lane, all at the same event number.
struct ReadRecord {
  uint32_t event;
  uint32_t lanes;
  uint16_t group;
  uint16_t site;
  uint8_t mask;
};

struct Records {
  static constexpr int kWrites = 4, kReads = 8;
  uint8_t write_count, read_count;
  WriteRecord writes[kWrites];  // of disjoint bytes
  ReadRecord reads[kReads];

  void clear() { write_count = read_count = 0; }
};

/// 16 bytes of shared memory.
struct ShadowCell {
  static constexpr int32_t kWhole = -1;
  uint32_t epoch;  // of another one than the shadow's: empty
  int32_t split;   // index in Shadow::quads of the records of its four words, or kWhole
  Records records;
};

/// The cells of a cluster. Kept from cluster to cluster: a new epoch empties them all.
struct Shadow {
  std::vector<std::unique_ptr<ShadowCell[]>> ctas;  // by rank
  size_t cells = 0;                                 // of each CTA
  uint32_t epoch = 0;
  std::vector<Records> quads;
};

}  // namespace moye::emu
