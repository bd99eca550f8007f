// Where lanes of a warp meet: every .sync instruction is one.
#pragma once

#include "moye/emu/machine.h"

namespace moye::emu {

/// Registers the lane and its arguments. True for the last one to come: it executes the instruction for all, then calls
/// part(). The others return false after that has happened.
bool meet(Thread& thread, char const* what, uint32_t mask, void* arguments, Loc loc, Meeting*& meeting);
/// Lets the others go on.
void part(Thread& thread, Meeting& meeting);

/// All lanes of `mask` execute the instruction `what`; execute(void* const* arguments) runs once, when all are there.
template <class Execute>
void meet_and_execute(Thread& thread, char const* what, uint32_t mask, void* arguments, Loc loc, Execute&& execute) {
  Meeting* meeting;
  if (!meet(thread, what, mask, arguments, loc, meeting)) return;
  execute(meeting->arguments);
  part(thread, *meeting);
}

/// Fails unless all 32 lanes of the thread's warp exist.
void require_full_warp(Thread& thread, char const* what, Loc loc);

}  // namespace moye::emu
