// Faults of kernels become reports. This lives in somebody else's process: the handler is installed only while launches
// run, and faults that are not a kernel's go to the handler that was there before.
#include <signal.h>
#include <ucontext.h>

#include <mutex>

#include "moye/emu/machine.h"

namespace moye::emu {
namespace {

std::mutex mutex;
int launches = 0;  // running
struct sigaction previous;

uintptr_t program_counter([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#else
  return 0;
#endif
}

// 0 where we do not know how to ask.
uintptr_t stack_pointer([[maybe_unused]] void* context) {
#if defined(__x86_64__)
  return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RSP]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.sp);
#else
  return 0;
#endif
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (Thread* const thread = current_thread) {
    auto const address = reinterpret_cast<uintptr_t>(info->si_addr);
    // Leaves the handler by a switch to the OS thread's own stack. SA_NODEFER: nothing has to be unblocked.
    uintptr_t const pc = program_counter(context), sp = stack_pointer(context);
    bool const protection = info->si_code == SI_KERNEL;
    thread->domain->fail([&] { return describe_fault(*thread, address, pc, sp, protection); });
  }
  if ((previous.sa_flags & SA_SIGINFO) != 0) return previous.sa_sigaction(signal, info, context);
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) return previous.sa_handler(signal);
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);  // the faulting instruction runs again and ends the process
}

}  // namespace

FaultHandler::FaultHandler() {
  std::lock_guard lock(mutex);
  if (launches++ != 0) return;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous);
}

FaultHandler::~FaultHandler() {
  std::lock_guard lock(mutex);
  if (--launches != 0) return;
  struct sigaction current;
  sigaction(SIGSEGV, nullptr, &current);
  bool const ours = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_fault;
  if (ours) sigaction(SIGSEGV, &previous, nullptr);
}

FaultStack::FaultStack() {
  constexpr size_t kBytes = 64 * 1024;  // more than SIGSTKSZ with any vector extension
  stack_ = std::make_unique_for_overwrite<char[]>(kBytes);
  stack_t ours = {}, before = {};
  ours.ss_sp = stack_.get();
  ours.ss_size = kBytes;
  sigaltstack(&ours, &before);
  previous_stack_ = before.ss_sp;
  previous_bytes_ = before.ss_size;
  previous_flags_ = before.ss_flags;
}

FaultStack::~FaultStack() {
  stack_t before = {};
  before.ss_sp = previous_stack_;
  before.ss_size = previous_bytes_;
  before.ss_flags = previous_flags_ & SS_DISABLE;
  sigaltstack(&before, nullptr);
}

}  // namespace moye::emu
