// KnownLaunches finds what was added by the same node and the same addresses, the last few of each node, and never what
// belonged to another node that had the address before. Exits with the number of the line that is wrong.
#include "known_launches.h"

#include <string>
#include <thread>

#define EXPECT(condition) \
  if (!(condition)) return __LINE__

namespace {

int place[64];  // whose addresses are nodes' and buffers'

moye::KnownLaunch launch(int address, char value) {
  return {{&place[address], &place[0]}, {{{std::byte(value)}, {std::byte(1), std::byte(2)}}}};
}

char found(moye::KnownLaunches const& known, int node, int address) {
  auto const launch = known.find(&place[node], {&place[address], &place[0]});
  return launch == nullptr ? '\0' : char(launch->kernels[0][0][0]);
}

int test() {
  moye::KnownLaunches known;
  EXPECT(found(known, 1, 2) == '\0');
  known.add(&place[1], launch(2, 'a'), true);
  known.add(&place[1], launch(3, 'b'), false);
  known.add(&place[4], launch(2, 'c'), true);
  EXPECT(found(known, 1, 2) == 'a');
  EXPECT(found(known, 1, 3) == 'b');
  EXPECT(found(known, 4, 2) == 'c');
  EXPECT(found(known, 4, 3) == '\0');
  EXPECT(known.find(&place[1], {&place[2]}) == nullptr);  // fewer buffers

  // Another node at the address of the first: nothing of that counts.
  known.add(&place[1], launch(3, 'd'), true);
  EXPECT(found(known, 1, 2) == '\0');
  EXPECT(found(known, 1, 3) == 'd');

  // The last few of a node.
  int const most = int(moye::KnownLaunches::kOfCall);
  for (int i = 0; i < most; ++i) known.add(&place[1], launch(10 + i, char('e' + i)), false);
  EXPECT(found(known, 1, 3) == '\0');
  for (int i = 0; i < most; ++i) EXPECT(found(known, 1, 10 + i) == char('e' + i));

  // What is in use outlives what is forgotten; and all that is known stays small.
  auto const in_use = known.find(&place[4], {&place[2], &place[0]});
  EXPECT(in_use != nullptr);
  std::string many(moye::KnownLaunches::kMost + 1, '\0');
  for (char const& node : many) known.add(&node, launch(5, 'z'), true);
  EXPECT(found(known, 4, 2) == '\0');
  EXPECT(char(in_use->kernels[0][0][0]) == 'c');
  EXPECT(known.find(&many.back(), {&place[5], &place[0]}) != nullptr);
  return 0;
}

int test_threads() {
  moye::KnownLaunches known;
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 20000; ++turn) {
        char const value = char('a' + turn % 20);
        known.add(&place[i], launch(1 + turn % 20, value), turn % 50 == 0);
        wrong[size_t(i)] += found(known, i, 1 + turn % 20) != value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(wrong == std::vector<int>(4, 0));
  return 0;
}

}  // namespace

int main() {
  if (int const line = test()) return line;
  return test_threads();
}
