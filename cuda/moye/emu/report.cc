// Words of reports: threads, blocks and source lines.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdarg>
#include <cstdio>

#include "moye/emu/machine.h"

namespace moye::emu {

std::string format(char const* pattern, ...) {
  va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  int const length = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string text(length < 0 ? 0 : length, '\0');
  std::vsnprintf(text.data(), text.size() + 1, pattern, again);
  va_end(again);
  return text;
}

std::string block_name(Dim3 block) { return format("block (%u,%u,%u)", block.x, block.y, block.z); }

std::string who(Launch const& launch, Dim3 block, int thread_id) {
  Dim3 const grid = launch.shape.grid;
  bool const one = uint64_t{grid.x} * grid.y * grid.z == 1;
  return (one ? "" : block_name(block) + " ") +
         format("thread %d (warp %d lane %d)", thread_id, thread_id / 32, thread_id % 32);
}

std::string who(Thread const& thread) { return who(*thread.domain->launch, thread.cta->index, thread.id); }

namespace {

std::string base_name(std::string const& path) { return path.substr(path.rfind('/') + 1); }

std::string shell_quoted(std::string const& text) {
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

// Of the lines addr2line names, innermost first, the first that is not in the library: the kernel's.
std::string kernel_line(std::string const& module, uintptr_t address) {
  std::string const command = format("addr2line -i -e %s %#zx 2>/dev/null", shell_quoted(module).c_str(), address);
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string innermost, kernel;
  char line[1024];
  while (std::fgets(line, sizeof(line), pipe) != nullptr) {
    std::string text(line);
    text.resize(text.find_first_of(" \n"));  // "file:line (discriminator 2)"
    if (text[0] == '?' || text.find(":?") != std::string::npos) continue;
    if (innermost.empty()) innermost = base_name(text);
    bool const library = text.find("/moye/") != std::string::npos || text.find("/c++/") != std::string::npos;
    if (kernel.empty() && !library) kernel = base_name(text);
  }
  pclose(pipe);
  return kernel.empty() ? innermost : kernel;
}

std::string symbolized(void const* pc) {
  Dl_info info;
  if (dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return format("%p", pc);
  auto const base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  uintptr_t address = reinterpret_cast<uintptr_t>(pc) - 1;  // pc is a return address: the call is before it
  bool const fixed = static_cast<ElfW(Ehdr) const*>(info.dli_fbase)->e_type == ET_EXEC;
  if (!fixed) address -= base;
  std::string const line = kernel_line(info.dli_fname, address);
  return line.empty() ? base_name(info.dli_fname) + format("+%#zx", address) : line;
}

}  // namespace

std::string at(Loc loc) {
  if (loc.line < 0) return symbolized(loc.file);
  return base_name(loc.file != nullptr ? loc.file : "?") + format(":%d", loc.line);
}

}  // namespace moye::emu
