#include "interrupt_cpu.h"

#include <nanobind/nanobind.h>
#include <signal.h>

#include <mutex>
#include <system_error>
#include <thread>

namespace nb = nanobind;

namespace moye {
namespace {

std::mutex mutex;  // of what follows; the handler only reads `previous`, which is written while ours is not installed
int living = 0;
bool installed = false;
bool given_up = false;  // a foreign handler may call ours: it must never be ours that calls it
struct sigaction previous;

std::atomic<uint32_t> interrupts{0};
static_assert(std::atomic<uint32_t>::is_always_lock_free);  // or a signal handler may not touch it

void on_sigint(int signal, siginfo_t* info, void* context) {
  interrupts.fetch_add(1, std::memory_order_relaxed);
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  previous.sa_handler(signal);
}

bool is_ours(struct sigaction const& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_sigint;
}

bool is_function(struct sigaction const& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 || (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

bool is_previous(struct sigaction const& action) {
  if (((action.sa_flags ^ previous.sa_flags) & SA_SIGINFO) != 0) return false;
  return (action.sa_flags & SA_SIGINFO) != 0 ? action.sa_sigaction == previous.sa_sigaction
                                             : action.sa_handler == previous.sa_handler;
}

/// Puts our handler before the one there is, also where Python's signal.signal() has replaced it since.
void install() {
  struct sigaction current;
  if (given_up || sigaction(SIGINT, nullptr, &current) != 0 || is_ours(current)) return;
  if (!is_function(current) || (current.sa_flags & SA_RESETHAND) != 0) return;
  if (installed && !is_previous(current)) {
    given_up = true;
    return;
  }
  if (!installed) previous = current;
  struct sigaction ours = current;
  ours.sa_sigaction = on_sigint;
  ours.sa_flags |= SA_SIGINFO;
  installed = sigaction(SIGINT, &ours, nullptr) == 0;
}

void uninstall() {
  if (!installed) return;
  installed = false;
  struct sigaction current;
  sigaction(SIGINT, nullptr, &current);
  if (is_ours(current)) {
    sigaction(SIGINT, &previous, nullptr);
  } else if (is_function(current) && !is_previous(current)) {
    given_up = true;
  }
}

}  // namespace

Interrupt::Interrupt() {
  std::lock_guard lock(mutex);
  ++living;
  install();
  begin_ = interrupts;
}

Interrupt::~Interrupt() {
  std::lock_guard lock(mutex);
  if (--living == 0) uninstall();
}

bool Interrupt::requested() {
  {
    std::lock_guard lock(mutex);
    install();
  }
  auto const now = std::chrono::steady_clock::now();
  uint32_t const count = interrupts - begin_;
  if (count == 0) {
    // Before there is one: after it, the program may set other handlers at once, as notebooks do behind each cell.
    if (answer_ == nullptr || (*answer_ != Answer::none_yet && now - asked_ > std::chrono::seconds(1))) {
      if (answer_ != nullptr) raises_ = *answer_ == Answer::ends;
      start_asking(now);
    }
    return false;
  }
  if (count > 1) return true;
  if (!noticed_) {
    noticed_ = now;
    if (answer_ == nullptr) start_asking(now);
  }
  // Who waits for an array looks for signals every 200 ms, and is to find KeyboardInterrupt before XLA's error.
  if (now - *noticed_ < std::chrono::milliseconds(400)) return false;
  return raises_ ? *raises_ : *answer_ != Answer::goes_on;
}

/// On another thread: somebody may wait for this launch and not let go of Python's lock.
void Interrupt::start_asking(std::chrono::steady_clock::time_point now) {
  asked_ = now;
  answer_ = std::make_shared<std::atomic<Answer>>(Answer::none_yet);
  try {
    std::thread([answer = answer_] { ask(*answer); }).detach();
  } catch (std::system_error const&) {
    *answer_ = Answer::ends;
  }
}

/// Whether SIGINT raises KeyboardInterrupt, as Python has it unless told otherwise.
void Interrupt::ask(std::atomic<Answer>& answer) {
  if (Py_IsInitialized() == 0) return;
  PyGILState_STATE const state = PyGILState_Ensure();  // ends this thread where Python is about to end
  try {
    nb::module_ const signal = nb::module_::import_("signal");
    bool const raises = signal.attr("getsignal")(SIGINT).is(signal.attr("default_int_handler"));
    answer = raises ? Answer::ends : Answer::goes_on;
  } catch (nb::python_error const&) {
    answer = Answer::ends;
  }
  PyGILState_Release(state);
}

}  // namespace moye
