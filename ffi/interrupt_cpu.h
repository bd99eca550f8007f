// Ctrl-C while a kernel runs in the emulator and Python waits for XLA, which calls the kernel on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

namespace moye {

/// Notices SIGINT while it lives. Python's own handler is called as ever, but KeyboardInterrupt ends no kernel: who
/// waits for an array gets it, and at its end the process waits for the kernel all the same. So a launch asks here:
///   - where the program has left SIGINT to Python, which raises KeyboardInterrupt, the first one ends the launch;
///   - where it has a handler of its own, in which it may choose to go on, the second one does.
/// Where SIGINT ends the process, or is ignored, nothing is changed, and so it is where another library has put a
/// handler before ours.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(Interrupt const&) = delete;
  Interrupt& operator=(Interrupt const&) = delete;

  /// Whether the launch shall end. Does not wait, not for Python either. To be asked some times a second.
  bool requested();

 private:
  enum class Answer { none_yet, ends, goes_on };

  uint32_t begin_;
  std::shared_ptr<std::atomic<Answer>> answer_;
  std::chrono::steady_clock::time_point asked_;
  std::optional<bool> raises_;  // what the last but one answer was
  std::optional<std::chrono::steady_clock::time_point> noticed_;

  void start_asking(std::chrono::steady_clock::time_point now);
  static void ask(std::atomic<Answer>& answer);
};

}  // namespace moye
