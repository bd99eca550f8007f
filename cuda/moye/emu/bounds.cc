// The report of moye/bounds.h: a coordinate outside of its tensor's shape.
#include "moye/arch/bounds.h"

#include <cstdio>
#include <cstdlib>

#include "moye/emu/machine.h"

namespace moye::emu {

void out_of_bounds(char const* coord, char const* shape, Loc loc) {
  if (loc.file == nullptr) loc = {static_cast<char const*>(__builtin_return_address(0)), -1};  // t[coord]: no line
  Thread* const thread = current_thread;
  if (thread == nullptr) {
    std::fprintf(stderr, "coordinate %s lies outside of shape %s at %s\n", coord, shape, at(loc).c_str());
    std::abort();
  }
  thread->domain->fail([&] {
    return format("coordinate %s lies outside of shape %s at %s by %s", coord, shape, at(thread->reported(loc)).c_str(),
                  who(*thread).c_str());
  });
}

}  // namespace moye::emu
