// What handlers of both platforms have to do with XLA: its buffers, its errors, and how a call is bound to a function.
#pragma once

#include <exception>
#include <initializer_list>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "gemm.h"
#include "xla/ffi/api/ffi.h"

namespace moye {

namespace ffi = xla::ffi;

using Int64s = ffi::Span<int64_t const>;

inline ffi::Error to_error(Status const& status, ffi::ErrorCode code) {
  return status.ok() ? ffi::Error::Success() : ffi::Error(code, status.message);
}

/// False for a type no kernel reads or writes.
inline bool to_dtype(ffi::DataType type, Dtype& dtype) {
  auto const is = [&](Dtype ours) { return dtype = ours, true; };
  switch (type) {
    case ffi::DataType::BF16:
      return is(Dtype::bf16);
    case ffi::DataType::F16:
      return is(Dtype::f16);
    case ffi::DataType::F32:
      return is(Dtype::f32);
    case ffi::DataType::F64:
      return is(Dtype::f64);
    case ffi::DataType::S8:
      return is(Dtype::s8);
    case ffi::DataType::S32:
      return is(Dtype::s32);
    case ffi::DataType::F8E4M3FN:
      return is(Dtype::e4m3);
    case ffi::DataType::F8E5M2:
      return is(Dtype::e5m2);
    default:
      return false;
  }
}

inline std::span<int64_t const> to_span(Int64s values) { return {values.begin(), values.size()}; }

/// False for a buffer of a type no kernel reads or writes.
inline bool to_buffer(ffi::AnyBuffer from, Buffer& buffer) {
  buffer.data = from.untyped_data();
  buffer.elements = int64_t(from.element_count());
  return to_dtype(from.element_type(), buffer.dtype);
}

inline constexpr char const* kOurDtypes = "operands and results are bf16, f16, f32, f64, s8, s32, e4m3 or e5m2";

/// Of a request that cannot be run: error_of() says what it is of.
template <class Request>
ffi::Error invalid(Request const& request, std::string_view reason) {
  return to_error(error_of(request, reason), ffi::ErrorCode::kInvalidArgument);
}

/// Calls f(), which returns an ffi::Error. No exception leaves a handler: XLA would lose its type and text.
template <class F>
ffi::Error guarded(std::string_view config, F const& f) {
  try {
    return f();
  } catch (std::bad_alloc const&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, gemm_error(config, {}, "out of host memory").message);
  } catch (std::exception const& error) {
    return ffi::Error::Internal(gemm_error(config, {}, error.what()).message);
  } catch (...) {
    return ffi::Error::Internal(gemm_error(config, {}, "an exception of unknown type").message);
  }
}

/// How many arrays the calls of a target have. Where there may be more, any number of others follows.
struct Buffers {
  int operands = 0;
  bool more_operands = false;
  int results = 0;
  bool more_results = false;
};

/// An attribute of a call: its name there, and where it stands in the struct of a target's attributes.
template <class Attributes, class T>
struct Attribute {
  using Type = T;
  char const* name;
  T Attributes::* member;
};

/// A function for XLA, which hands over attributes one by one, behind all others: calls f(attributes, others...).
template <class Attributes, class F, class... Members>
auto with_struct(std::tuple<Members...> const& members, F const& f) {
  return [members, f](auto const&... values) {
    constexpr size_t kOthers = sizeof...(values) - sizeof...(Members);
    auto const all = std::tie(values...);
    Attributes attributes{};
    [&]<size_t... i>(std::index_sequence<i...>) {
      ((attributes.*std::get<i>(members).member = std::get<kOthers + i>(all)), ...);
    }(std::make_index_sequence<sizeof...(Members)>());
    return [&]<size_t... i>(std::index_sequence<i...>) {
      return f(attributes, std::get<i>(all)...);
    }(std::make_index_sequence<kOthers>());
  };
}

/// A handler: f(attributes, what `binding` has..., operands..., results...) returns an ffi::Error.
///
/// members: a tuple of Attribute. kBound: of them, those that `binding` has.
template <class Attributes, Buffers kLeft, size_t kBound = 0, class Binding, class... Members, class F>
auto* make_handler(Binding binding, std::tuple<Members...> const& members, F const& f,
                   std::initializer_list<ffi::Traits> traits = {}) {
  constexpr int kOperands = kLeft.operands, kResults = kLeft.results;
  constexpr bool kMoreOperands = kLeft.more_operands, kMoreResults = kLeft.more_results;
  if constexpr (kOperands > 0) {
    return make_handler<Attributes, Buffers{kOperands - 1, kMoreOperands, kResults, kMoreResults}>(
        std::move(binding).template Arg<ffi::AnyBuffer>(), members, f, traits);
  } else if constexpr (kMoreOperands) {
    return make_handler<Attributes, Buffers{0, false, kResults, kMoreResults}>(std::move(binding).RemainingArgs(),
                                                                               members, f, traits);
  } else if constexpr (kResults > 0) {
    return make_handler<Attributes, Buffers{0, false, kResults - 1, kMoreResults}>(
        std::move(binding).template Ret<ffi::AnyBuffer>(), members, f, traits);
  } else if constexpr (kMoreResults) {
    return make_handler<Attributes, Buffers{}>(std::move(binding).RemainingRets(), members, f, traits);
  } else if constexpr (kBound < sizeof...(Members)) {
    auto const& member = std::get<kBound>(members);
    using T = typename std::tuple_element_t<kBound, std::tuple<Members...>>::Type;
    return make_handler<Attributes, Buffers{}, kBound + 1>(std::move(binding).template Attr<T>(member.name), members, f,
                                                           traits);
  } else {
    return binding.To(with_struct<Attributes>(members, f), traits).release();
  }
}

}  // namespace moye
