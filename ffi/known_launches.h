// What recorded calls gave their kernels, by the addresses of their buffers: a graph whose addresses come back is given
// the same again, and no call is decoded. Plain C++.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moye {

/// The values of a kernel's arguments, one behind the other.
using LaunchArguments = std::vector<std::vector<std::byte>>;

/// What the kernels of one call were given when its buffers lay at `addresses`.
struct KnownLaunch {
  std::vector<void const*> addresses;
  std::vector<LaunchArguments> kernels;
};

/// Of each call, which is named by the node of its first kernel, the last few. All else that decides what its kernels
/// are given is the same as long as the node lasts. Several threads may ask.
class KnownLaunches {
 public:
  // For a host that runs ahead of the device, which may have memory of its own for each execution under way: a hundred
  // ahead, nearly no call was unknown with 64, nor with 8 (docs/performance.md, section 45). One has some kilobytes.
  static constexpr size_t kOfCall = 32, kMost = 8192;

  /// Null: not known.
  std::shared_ptr<KnownLaunch const> find(void const* node, std::vector<void const*> const& addresses) const {
    std::scoped_lock const lock(mutex_);
    auto const of_call = known_.find(node);
    if (of_call == known_.end()) return nullptr;
    auto const is_of = [&](auto const& launch) { return launch->addresses == addresses; };
    auto const found = std::find_if(of_call->second.begin(), of_call->second.end(), is_of);
    return found == of_call->second.end() ? nullptr : *found;
  }

  /// is_new: the node has just been created. What is known of another one that had its address counts no more.
  void add(void const* node, KnownLaunch launch, bool is_new) {
    auto added = std::make_shared<KnownLaunch const>(std::move(launch));
    std::scoped_lock const lock(mutex_);
    if (number_ == kMost) {  // of graphs that are gone, most likely: nobody says when
      known_.clear();
      number_ = 0;
    }
    auto& of_call = known_[node];
    size_t const before = of_call.size();
    if (is_new) of_call.clear();
    if (of_call.size() == kOfCall) of_call.erase(of_call.begin());
    of_call.push_back(std::move(added));
    number_ += of_call.size() - before;
  }

 private:
  std::mutex mutable mutex_;
  std::unordered_map<void const*, std::vector<std::shared_ptr<KnownLaunch const>>> known_;
  size_t number_ = 0;  // of all calls
};

}  // namespace moye
