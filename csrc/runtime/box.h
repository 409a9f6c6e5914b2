// What torch's dispatcher calls: takes the arguments off its stack, calls a host function, and leaves its results
// there.
#pragma once

#include <torch/csrc/stable/library.h>

#include <tuple>
#include <utility>

#include "view.h"

namespace gdn {

// An argument that is the callee's from now on. A tensor's is its handle; an optional one's, in memory of its own.
template <class T>
T taken(StableIValue value) {
  if constexpr (std::is_same_v<T, Tensor>) {
    return Tensor(torch::stable::detail::to<AtenTensorHandle>(value));
  } else if constexpr (std::is_same_v<T, OptTensor>) {
    const auto handle = torch::stable::detail::to<std::optional<AtenTensorHandle>>(value);
    return handle.has_value() ? OptTensor(Tensor(*handle)) : std::nullopt;
  } else {
    return torch::stable::detail::to<T>(value);
  }
}

// The host function `F`, whose last kOuts parameters are memory for its results: on the stack in the op's form .out,
// which returns nothing, and absent in the other.
template <auto F, size_t kOuts, bool kGiven>
struct Boxed;

template <class R, class... P, R (*F)(P...), size_t kOuts, bool kGiven>
struct Boxed<F, kOuts, kGiven> {
  using Arguments = std::tuple<std::remove_cv_t<std::remove_reference_t<P>>...>;

  template <size_t I>
  static std::tuple_element_t<I, Arguments> argument(StableIValue* stack) {
    if constexpr (I + kOuts < sizeof...(P))
      return taken<std::tuple_element_t<I, Arguments>>(stack[I]);
    else if constexpr (kGiven)
      return taken<Tensor>(stack[I]);
    else
      return std::nullopt;
  }

  template <size_t... I>
  static Arguments arguments(StableIValue* stack, std::index_sequence<I...>) {
    return {argument<I>(stack)...};
  }

  static void call(StableIValue* stack) {
    const Arguments given = arguments(stack, std::index_sequence_for<P...>());
    if constexpr (kGiven || std::is_void_v<R>)
      std::apply(F, given);
    else
      leave(stack, std::apply(F, given));
  }

  static void leave(StableIValue* stack, Tensor result) { *stack = torch::stable::detail::from(result.release()); }
  template <class... T>
  static void leave(StableIValue* stack, std::tuple<T...> results) {
    std::apply([&](auto&... result) { (leave(stack++, std::move(result)), ...); }, results);
  }
};

template <auto F, size_t kOuts, bool kGiven>
void boxed(StableIValue* stack, uint64_t, uint64_t) {
  Boxed<F, kOuts, kGiven>::call(stack);
}

}  // namespace gdn
