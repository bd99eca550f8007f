// What a recorded call may do early, of launches with room for the kernel behind and without. Exits with the number of
// the line that is wrong.
#include "gemm/launch.h"

#define EXPECT(condition) \
  if (!(condition)) return __LINE__

namespace {

struct Recorder final : moye::LaunchRecorder {
  moye::Status record(void const*, moye::LaunchConfig const&, std::span<moye::KernelArgument const>) override {
    return {};
  }
};

}  // namespace

int main() {
  using moye::kEarlyA, moye::kEarlyB, moye::kEarlyNext, moye::kEarlyNextAtOnce;
  EXPECT(moye::early_where(true) == 0);  // on a stream
  Recorder recorder;
  moye::launch_recorder = &recorder;
  EXPECT(moye::early_where(true) == 0);  // nothing is allowed
  recorder.early_operands = kEarlyB | kEarlyNext;
  EXPECT(moye::early_where(true) == (kEarlyB | kEarlyNext | kEarlyNextAtOnce));
  EXPECT(moye::early_where(false) == kEarlyNext);
  recorder.early_operands = kEarlyA | kEarlyB | kEarlyNext;
  EXPECT(moye::early_where(true) == (kEarlyA | kEarlyB | kEarlyNext | kEarlyNextAtOnce));
  recorder.early_operands = kEarlyNext;
  EXPECT(moye::early_where(true) == (kEarlyNext | kEarlyNextAtOnce));
  return 0;
}
