// KnownLaunches finds what was added by the same node where addresses are of the same kind, with the places of the
// addresses; and never what belonged to another node that had the address before. Exits with the number of the line
// that is wrong.
#include "known_launches.h"

#include <string>
#include <thread>

#define EXPECT(condition) \
  if (!(condition)) return __LINE__

namespace {

using namespace moye;

int nodes[64];

void const* at(uint64_t address) { return reinterpret_cast<void const*>(address); }

/// A call with two kernels, by the addresses of its buffers a, b and d.
Kernels kernels_of(Addresses const& buffers, char value) {
  struct {
    void const* a;
    int rows;
    void const* second_row_of_b;
  } const first{buffers[0], 7, static_cast<char const*>(buffers[1]) + 512};
  Kernels kernels(2);
  kernels[0].add(&first, sizeof(first));
  kernels[0].add(&value, 1);
  kernels[1].add(&value, 1);
  kernels[1].add(&buffers[2], sizeof(void*));
  kernels[1].add(&buffers[0], sizeof(void*));
  return kernels;
}

Addresses moved(Addresses buffers, Distances const& distances) {
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i] = at(reinterpret_cast<uint64_t>(buffers[i]) + distances[i]);
  return buffers;
}

std::optional<KnownLaunch> known_of(Addresses const& buffers, char value = 'x') {
  return known_launch(buffers, kernels_of(buffers, value), [&](Distances const& distances) {
    return std::optional(kernels_of(moved(buffers, distances), value));
  });
}

int test_places() {
  Addresses const first = {at(0x7f0000001000), at(0x7f0000002000), at(0x7f0000003000)};
  auto const known = known_of(first);
  EXPECT(known);
  EXPECT(known->places.size() == 4);
  Addresses const second = {at(0x7e0000005000), at(0x7f0000002000), at(0x100)};
  EXPECT(known->fits(first) && known->fits(second));
  Kernels kernels = known->kernels;
  known->move(kernels, distances_between(first, second));
  EXPECT(kernels == kernels_of(second, 'x'));

  // Addresses of another kind: less aligned, empty, two at one place, more of them.
  EXPECT(!known->fits({at(0x7f0000001010), second[1], second[2]}));
  EXPECT(!known->fits({nullptr, second[1], second[2]}));
  EXPECT(!known->fits({second[1], second[1], second[2]}));
  EXPECT(!known->fits({second[0], second[1]}));

  // Two buffers at one place, and an empty one.
  Addresses const in_place = {at(0x5000), nullptr, at(0x5000)};
  auto const also = known_launch(in_place, Kernels(1), [](Distances const& distances) {
    bool const together =
        distances[0] == distances[2] && distances[1] == 0 && distances[0] % KnownLaunch::kAlignment == 0;
    return together ? std::optional(Kernels(1)) : std::nullopt;
  });
  EXPECT(also && also->places.empty());
  EXPECT(also->fits({at(0x9000), nullptr, at(0x9000)}));
  EXPECT(!also->fits({at(0x9000), nullptr, at(0x8000)}));
  EXPECT(!also->fits({at(0x9000), at(0x8000), at(0x9000)}));
  return 0;
}

/// What follows from addresses, and is none: never given to kernels again.
int test_what_is_no_address() {
  Addresses const buffers = {at(0x1000), at(0x2000)};
  auto const is_known = [&](auto const& value_of) {
    auto const given = [&](Addresses const& to) {
      Kernels kernels(1);
      uint64_t const value = value_of(reinterpret_cast<uint64_t>(to[0]), reinterpret_cast<uint64_t>(to[1]));
      kernels[0].add(&value, sizeof(value));
      return kernels;
    };
    return known_launch(buffers, given(buffers),
                        [&](Distances const& distances) { return std::optional(given(moved(buffers, distances))); })
        .has_value();
  };
  EXPECT(is_known([](uint64_t a, uint64_t) { return a + 64; }));
  EXPECT(is_known([](uint64_t, uint64_t) { return 3; }));
  EXPECT(!is_known([](uint64_t a, uint64_t) { return a >> 4; }));
  EXPECT(!is_known([](uint64_t a, uint64_t) { return uint64_t(uint32_t(a)); }));
  for (int bit = 8; bit < 40; bit += 8)  // a byte of it
    EXPECT(!is_known([&](uint64_t a, uint64_t) { return a >> bit & 0xff; }));
  EXPECT(is_known([](uint64_t a, uint64_t) { return a % KnownLaunch::kAlignment; }));
  EXPECT(!is_known([](uint64_t a, uint64_t b) { return a + b; }));
  EXPECT(!is_known([](uint64_t a, uint64_t b) { return b - a; }));  // is a's distance in the first set
  EXPECT(!is_known([](uint64_t a, uint64_t) { return uint64_t(a < (uint64_t(2) << 32)); }));  // differs in the second

  auto const kernels = kernels_of({at(1), at(2), at(3)}, 'x');
  EXPECT(!known_launch({at(1)}, kernels, [](auto const&) { return std::optional<Kernels>(); }));
  EXPECT(!known_launch({at(1)}, kernels, [](auto const&) { return std::optional(Kernels(1)); }));
  return 0;
}

char found(KnownLaunches const& known, int node, Addresses const& addresses) {
  auto const launch = known.find(&nodes[node], addresses);
  return launch == nullptr ? '\0' : char(launch->kernels[1].bytes[0]);
}

/// Addresses of a kind of their own.
Addresses of_kind(uint64_t kind) { return {at(0x10000 + kind), at(0x20000), at(0x30000)}; }

int test_nodes() {
  KnownLaunches known;
  EXPECT(!known.cannot_be_known(&nodes[1]) && found(known, 1, of_kind(0)) == '\0');
  known.add(&nodes[1], std::nullopt);
  EXPECT(known.cannot_be_known(&nodes[1]) && found(known, 1, of_kind(0)) == '\0');
  known.add(&nodes[1], *known_of(of_kind(0), 'a'));
  known.add(&nodes[1], *known_of(of_kind(16), 'b'));
  known.add(&nodes[4], *known_of(of_kind(0), 'c'));
  EXPECT(!known.cannot_be_known(&nodes[1]));
  EXPECT(found(known, 1, of_kind(0)) == 'a');
  EXPECT(found(known, 1, of_kind(0x5000)) == 'a');
  EXPECT(found(known, 1, of_kind(16)) == 'b');
  EXPECT(found(known, 4, of_kind(0)) == 'c');
  EXPECT(found(known, 4, of_kind(16)) == '\0');

  // Another node at the address of the first: nothing of that counts.
  known.forget(&nodes[1]);
  EXPECT(!known.cannot_be_known(&nodes[1]) && found(known, 1, of_kind(0)) == '\0');
  known.forget(&nodes[1]);

  // The last few kinds of a node.
  int const most = int(KnownLaunches::kOfCall);
  for (int i = 0; i <= most; ++i) known.add(&nodes[1], *known_of(of_kind(16 * uint64_t(i)), char('e' + i)));
  EXPECT(found(known, 1, of_kind(0)) == '\0');
  for (int i = 1; i <= most; ++i) EXPECT(found(known, 1, of_kind(16 * uint64_t(i))) == char('e' + i));

  // What is in use outlives what is forgotten; and all that is known stays small.
  auto const in_use = known.find(&nodes[4], of_kind(0));
  EXPECT(in_use != nullptr);
  std::string many(KnownLaunches::kMostCalls + 1, '\0');
  KnownLaunch const launch = *known_of(of_kind(0), 'z');
  for (char const& node : many) known.add(&node, launch);
  EXPECT(found(known, 4, of_kind(0)) == '\0');
  EXPECT(char(in_use->kernels[1].bytes[0]) == 'c');
  EXPECT(known.find(&many.back(), of_kind(0)) != nullptr);
  EXPECT(!known.cannot_be_known(&nodes[4]));  // so that it is asked for again
  return 0;
}

int test_threads() {
  KnownLaunches known;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 5000; ++turn) {
        char const value = char('a' + turn % 7);  // of the kind
        if (turn % 50 == 0) known.forget(&nodes[i]);
        known.add(&nodes[i], *known_of(of_kind(uint64_t(turn % 7) * 16), value));
        auto const launch = known.find(&nodes[i], of_kind(uint64_t(turn % 7) * 16));
        wrong[size_t(i)] += launch == nullptr || char(launch->kernels[1].bytes[0]) != value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == std::vector<int>(4, 0));
  return 0;
}

}  // namespace

int main() {
  for (auto const test : {test_places, test_what_is_no_address, test_nodes, test_threads})
    if (int const line = test()) return line;
  return 0;
}
