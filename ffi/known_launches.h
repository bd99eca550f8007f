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

  struct Found {
    std::shared_ptr<KnownLaunch const> launch;  // null: not known
    bool is_current = false;                    // the kernels have it already
  };

  /// If it is not current, what the kernels have is not known from now on: the caller gives them what is found, then
  /// keeps it, or gives them something new, then adds that.
  Found find(void const* node, std::vector<void const*> const& addresses) {
    std::scoped_lock const lock(mutex_);
    auto const found = known_.find(node);
    if (found == known_.end()) return {};
    OfCall& of_call = found->second;
    KnownLaunch const* const current = std::exchange(of_call.current, nullptr);
    auto const is_of = [&](auto const& launch) { return launch->addresses == addresses; };
    auto const launch = std::find_if(of_call.launches.begin(), of_call.launches.end(), is_of);
    if (launch == of_call.launches.end()) return {};
    if (launch->get() == current) of_call.current = current;
    return {*launch, launch->get() == current};
  }

  /// The kernels were given what was found.
  void keep(void const* node, KnownLaunch const& found) {
    std::scoped_lock const lock(mutex_);
    if (auto const of_call = known_.find(node); of_call != known_.end()) of_call->second.current = &found;
  }

  /// is_new: the node has just been created. What is known of another one that had its address counts no more.
  void add(void const* node, KnownLaunch launch, bool is_new) {
    auto added = std::make_shared<KnownLaunch const>(std::move(launch));
    std::scoped_lock const lock(mutex_);
    if (number_ == kMost) {  // of graphs that are gone, most likely: nobody says when
      known_.clear();
      number_ = 0;
    }
    OfCall& of_call = known_[node];
    auto& launches = of_call.launches;
    size_t const before = launches.size();
    if (is_new) launches.clear();
    if (launches.size() == kOfCall) launches.erase(launches.begin());
    of_call.current = added.get();
    launches.push_back(std::move(added));
    number_ += launches.size() - before;
  }

 private:
  struct OfCall {
    std::vector<std::shared_ptr<KnownLaunch const>> launches;
    KnownLaunch const* current = nullptr;  // of those, the one that the kernels have
  };

  std::mutex mutex_;
  std::unordered_map<void const*, OfCall> known_;
  size_t number_ = 0;  // of all calls
};

}  // namespace moye
