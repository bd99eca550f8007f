// What recorded calls gave their kernels, and where in it the addresses of their buffers stand: where buffers have
// moved, kernels are given the same with the new addresses in their places, and no call is decoded. Plain C++.
//
// The places are found by what a call gives its kernels for made-up addresses, which nobody reads: each buffer lies a
// distance of its own from where it was, so a word that has changed says by how much, and so whose address it is. For a
// second set of distances all of it is foretold, and compared with what the call gives: if anything else follows from
// the addresses, the call is decoded each time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moye {

/// Of a call's buffers: operands, then results. Null: an empty one.
using Addresses = std::vector<void const*>;
/// By how many bytes each of them is moved.
using Distances = std::vector<uint64_t>;

/// The values of a kernel's arguments, each at a multiple of 8 bytes.
struct LaunchArguments {
  std::vector<std::byte> bytes;
  std::vector<size_t> begins, sizes;  // of each value

  void add(void const* value, size_t size) {
    begins.push_back(bytes.size());
    sizes.push_back(size);
    bytes.resize(bytes.size() + (size + 7) / 8 * 8);
    std::memcpy(bytes.data() + begins.back(), value, size);
  }
  uint64_t word(size_t at) const {
    uint64_t value;
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  }
  void add_to_word(size_t at, uint64_t more) {
    uint64_t const value = word(at) + more;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
  bool operator==(LaunchArguments const&) const = default;
};
using Kernels = std::vector<LaunchArguments>;  // of one call

/// Where an address of a buffer stands, with an offset or without.
struct AddressPlace {
  size_t kernel, at, buffer;
};

/// What the kernels of one call were given when its buffers lay at `addresses`.
struct KnownLaunch {
  Addresses addresses;
  Kernels kernels;
  std::vector<AddressPlace> places;

  // What a kernel may do with a buffer follows from its address modulo this.
  static constexpr uintptr_t kAlignment = 256;

  /// Whether a call with its buffers there is given the same but for addresses: the same ones are empty, the same ones
  /// are one, and all are aligned as they were.
  bool fits(Addresses const& others) const {
    if (others.size() != addresses.size()) return false;
    for (size_t i = 0; i < others.size(); ++i) {
      auto const was = reinterpret_cast<uintptr_t>(addresses[i]), is = reinterpret_cast<uintptr_t>(others[i]);
      if ((was == 0) != (is == 0) || (was ^ is) % kAlignment != 0) return false;
      for (size_t j = 0; j < i; ++j)
        if ((addresses[j] == addresses[i]) != (others[j] == others[i])) return false;
    }
    return true;
  }

  /// kernels, of a call whose buffers have moved so far.
  void move(Kernels& moved, Distances const& distances) const {
    for (AddressPlace const& place : places) moved[place.kernel].add_to_word(place.at, distances[place.buffer]);
  }
};

/// How far buffers are from where they were.
inline Distances distances_between(Addresses const& from, Addresses const& to) {
  Distances distances;
  distances.reserve(from.size());
  for (size_t i = 0; i < from.size(); ++i)
    distances.push_back(reinterpret_cast<uintptr_t>(to[i]) - reinterpret_cast<uintptr_t>(from[i]));
  return distances;
}

/// Made up, of set 0 or 1: another one for each buffer; empty ones stay, and those at one address move together. All
/// bytes of an address change but what kAlignment keeps, so that it shows if a part of one is somewhere.
inline Distances made_up_distances(Addresses const& addresses, int set) {
  Distances distances;
  for (size_t i = 0; i < addresses.size(); ++i) {
    auto const first = size_t(std::find(addresses.begin(), addresses.end(), addresses[i]) - addresses.begin());
    uint64_t const distance = set == 0 ? (first + 1) * 0x1'0101'0100 : (2 * first + 3) * 0x1'2345'6700;
    distances.push_back(addresses[i] == nullptr ? 0 : distance);
  }
  return distances;
}

/// What is known of a call when its kernels were given `kernels`, and for made-up addresses those of
/// `made_up(distances)`, an optional of Kernels. None: anything but addresses follows from addresses.
template <class MadeUp>
std::optional<KnownLaunch> known_launch(Addresses addresses, Kernels kernels, MadeUp const& made_up) {
  Distances const distances = made_up_distances(addresses, 0);
  std::optional<Kernels> const others = made_up(distances);
  if (!others || others->size() != kernels.size()) return {};
  KnownLaunch known{std::move(addresses), std::move(kernels), {}};
  for (size_t kernel = 0; kernel < known.kernels.size(); ++kernel) {
    LaunchArguments const &before = known.kernels[kernel], &behind = (*others)[kernel];
    if (before.sizes != behind.sizes) return {};
    for (size_t at = 0; at < before.bytes.size(); at += 8) {
      if (before.word(at) == behind.word(at)) continue;
      auto const moved = std::find(distances.begin(), distances.end(), behind.word(at) - before.word(at));
      if (moved == distances.end()) return {};
      known.places.push_back({kernel, at, size_t(moved - distances.begin())});
    }
  }
  Distances const further = made_up_distances(known.addresses, 1);
  Kernels foretold = known.kernels;
  known.move(foretold, further);
  if (made_up(further) != foretold) return {};
  return known;
}

/// Of each call, which is named by the node of its first kernel, what fits its last few kinds of addresses. All else
/// that decides what its kernels are given is the same as long as the node lasts. Several threads may ask.
class KnownLaunches {
 public:
  static constexpr size_t kOfCall = 4, kMostCalls = 8192;  // a kind has some kilobytes

  /// Null: not known.
  std::shared_ptr<KnownLaunch const> find(void const* node, Addresses const& addresses) const {
    std::scoped_lock const lock(mutex_);
    auto const of_call = known_.find(node);
    if (of_call == known_.end()) return nullptr;
    for (auto const& launch : of_call->second)
      if (launch->fits(addresses)) return launch;
    return nullptr;
  }

  /// Whether nothing was when it was asked for.
  bool cannot_be_known(void const* node) const {
    std::scoped_lock const lock(mutex_);
    auto const of_call = known_.find(node);
    return of_call != known_.end() && of_call->second.empty();
  }

  /// launch: none where nothing can be known.
  void add(void const* node, std::optional<KnownLaunch> launch) {
    auto const added = launch ? std::make_shared<KnownLaunch const>(std::move(*launch)) : nullptr;
    std::scoped_lock const lock(mutex_);
    // Of graphs that are gone, most likely: nobody says when. What is still needed is asked for again.
    if (known_.size() == kMostCalls && !known_.contains(node)) known_.clear();
    auto& of_call = known_[node];
    if (added == nullptr) return;
    if (of_call.size() == kOfCall) of_call.erase(of_call.begin());
    of_call.push_back(added);
  }

  /// The node is new: what is known of another one that had its address counts no more.
  void forget(void const* node) {
    std::scoped_lock const lock(mutex_);
    known_.erase(node);
  }

 private:
  std::mutex mutable mutex_;
  std::unordered_map<void const*, std::vector<std::shared_ptr<KnownLaunch const>>> known_;
};

}  // namespace moye
