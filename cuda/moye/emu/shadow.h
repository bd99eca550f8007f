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
  uint16_t site;
  uint16_t group : 12;
  uint16_t mask : 4;
};

/// Of 16 bytes, whose last write is one; of 4 bytes, each of which may have another.
template <int kMostWrites>
struct Records {
  static constexpr int kReads = 8;
  uint8_t write_count, read_count;
  WriteRecord writes[kMostWrites];  // of disjoint bytes
  ReadRecord reads[kReads];

  Records() {}  // empty only when cleared
  void clear() { write_count = read_count = 0; }
};
using WholeRecords = Records<1>;
using WordRecords = Records<4>;

/// 16 bytes of shared memory. What most accesses look at lies in one line of the processor's cache.
struct alignas(64) ShadowCell {
  static constexpr int32_t kWhole = -1;
  uint32_t epoch = 0;  // of another one than the shadow's: empty
  int32_t split;       // index in Shadow::words of the records of its four words, or kWhole
  WholeRecords records;
};

/// The cells of a cluster. Kept from cluster to cluster: a new epoch empties them all.
struct Shadow {
  std::vector<std::unique_ptr<ShadowCell[]>> ctas;  // by rank
  size_t cells = 0;                                 // of each CTA
  uint32_t epoch = 0;
  std::vector<WordRecords> words;
};

}  // namespace moye::emu
