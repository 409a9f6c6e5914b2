// The convolution step of the one-launch layer (gdn_decode_step.cu), two channels a thread.
#pragma once

#include "gdn_decode_step.h"
#include "recurrent_state.h"

namespace gdn {

// The convolution of two channels side by side, as it is in memory: what is looked at makes loads wait. With a layout
// of lines, a word has two numbers; filters of fewer than kTaps taps begin with zeros.
template <class T>
struct Channels {
  static constexpr int kTaps = 4, kWords = 2 * (kTaps - 1);
  static constexpr int32_t dtype = Number<T>::code;
  uint32_t x[2], bias[2], history[kWords], weight[2 * kTaps];
  char* line;  // where the first of kTaps - 1 columns would be

  // `row`: of x, from the channels on, the first of which is d.
  __device__ __forceinline__ void load_inputs(const GdnDecodeStepArgs& a, const T* row, uint32_t d) {
    const FilterArg& f = a.filter;
    if (f.bias) {
#pragma unroll
      for (int c = 0; c < 2; ++c) bias[c] = load_bits(f.bias, (d + c) * f.bias_stride, bias_dtype(a));
    }
    if (a.lines.layout != kAnyLines) {
      x[0] = *reinterpret_cast<const uint32_t*>(row);
      const uint4 all = static_cast<const uint4*>(f.weight)[d / 2];
      weight[0] = all.x, weight[1] = all.y, weight[2] = all.z, weight[3] = all.w;
      return;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      x[c] = load_bits(row, c, dtype);
      const int64_t first = (d + c) * f.stride_d + (a.W - kTaps) * f.stride_w;
#pragma unroll
      for (int i = 0; i < kTaps; ++i)
        weight[c * kTaps + i] = i >= kTaps - a.W ? load_bits(f.weight, first + i * f.stride_w, weight_dtype(a)) : 0;
    }
  }

  // To `words` of shared memory, a word a thread each: waiting for registers would be waiting for all loads behind
  // these.
  __device__ __forceinline__ void load_history(const GdnDecodeStepArgs& a, int64_t slot, uint32_t d, uint32_t* words) {
    line = line_of(a.lines, slot, d) + (a.W - kTaps) * step(a.lines);
    if (a.lines.layout != kAnyLines) {
#pragma unroll
      for (int i = 0; i < kTaps - 1; ++i) copy_4_bytes(words + i * blockDim.x + threadIdx.x, word(a, i));
    } else if (a.lines.fp32) {
      load_columns<uint32_t>(a, words);
    } else {
      load_columns<uint16_t>(a, words);
    }
  }

  // The new history: the old one without its first input, then x.
  __device__ __forceinline__ void store_history(const GdnDecodeStepArgs& a) const {
    if (a.lines.layout == kChannelsLast) {
      *word(a, 0) = history[1], *word(a, 1) = history[2], *word(a, 2) = x[0];
    } else if (a.lines.layout != kAnyLines) {  // h0 h1 | h2 h0' | h1' h2' to h1 h2 | x h1' | h2' x'
      *word(a, 0) = history[0] >> 16 | history[1] << 16;
      *word(a, 1) = (x[0] & 0xffff) | history[2] << 16;
      *word(a, 2) = history[2] >> 16 | (x[0] & 0xffff0000);
    } else if (a.lines.fp32) {
      store_columns<uint32_t>(a, __float_as_uint(bits_value(x[0], dtype)), __float_as_uint(bits_value(x[1], dtype)));
    } else {
      store_columns<uint16_t>(a, x[0], x[1]);
    }
  }

  __device__ __forceinline__ void take_history(const GdnDecodeStepArgs& a, const uint32_t* words) {
    wait_for_copies();
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      if (i < kTaps - 1 || a.lines.layout == kAnyLines) history[i] = words[i * blockDim.x + threadIdx.x];
  }

  __device__ __forceinline__ void results(const GdnDecodeStepArgs& a, float (&y)[2]) const {
    float in[2][kTaps], w[2][kTaps];
    if (a.lines.layout != kAnyLines) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) w[c][i] = half(weight, c * kTaps + i), in[c][i] = 0;
        in[c][kTaps - 1] = half(x, c);
      }
      if (a.lines.layout == kChannelsLast) {
#pragma unroll
        for (int i = 0; i < kWords; ++i) in[i % 2][i / 2] = half(history, i);
      } else {
#pragma unroll
        for (int i = 0; i < kWords; ++i) in[i / (kTaps - 1)][i % (kTaps - 1)] = half(history, i);
      }
    } else {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int i = 0; i < kTaps; ++i) w[c][i] = bits_value(weight[c * kTaps + i], weight_dtype(a));
#pragma unroll
        for (int i = 0; i < kTaps - 1; ++i)
          in[c][i] = bits_value(history[c * (kTaps - 1) + i], a.lines.fp32 ? kFP32 : dtype);
        in[c][kTaps - 1] = bits_value(x[c], dtype);
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      y[c] = a.filter.bias ? bits_value(bias[c], bias_dtype(a)) : 0.0f;
#pragma unroll
      for (int i = 0; i < kTaps; ++i) y[c] = fmaf(w[c][i], in[c][i], y[c]);
      if (a.filter.activation == kSilu) y[c] = silu(y[c]);
    }
  }

  static __device__ __forceinline__ char* line_of(const LinesArg& lines, int64_t slot, uint32_t d) {
    return static_cast<char*>(lines.data) + (slot * lines.stride_n + d * lines.stride_d) * (lines.fp32 ? 4 : 2);
  }

 private:
  static __device__ __forceinline__ int32_t bias_dtype(const GdnDecodeStepArgs& a) {
    return a.filter.bias_fp32 ? kFP32 : dtype;
  }
  static __device__ __forceinline__ int32_t weight_dtype(const GdnDecodeStepArgs& a) {
    return a.filter.weight_fp32 ? kFP32 : dtype;
  }
  static __device__ __forceinline__ int64_t step(const LinesArg& lines) {
    return lines.stride_l * (lines.fp32 ? 4 : 2);
  }
  // Number i of those in words.
  static __device__ __forceinline__ float half(const uint32_t* words, int i) {
    return i % 2 ? Number<T>::high(words[i / 2]) : Number<T>::low(words[i / 2]);
  }
  // Where word i of the history is: of a column, or next to the one before.
  __device__ __forceinline__ uint32_t* word(const GdnDecodeStepArgs& a, int i) const {
    return reinterpret_cast<uint32_t*>(line + i * (a.lines.layout == kChannelsLast ? step(a.lines) : 4));
  }

  template <class Bits>
  __device__ __forceinline__ Bits* column(const GdnDecodeStepArgs& a, int c, int i) const {
    return reinterpret_cast<Bits*>(line + i * step(a.lines)) + c * a.lines.stride_d;
  }
  template <class Bits>
  __device__ __forceinline__ void load_columns(const GdnDecodeStepArgs& a, uint32_t* words) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int c = i / (kTaps - 1), j = i % (kTaps - 1);
      words[i * blockDim.x + threadIdx.x] = j >= kTaps - a.W ? *column<Bits>(a, c, j) : 0;
    }
  }
  template <class Bits>
  __device__ __forceinline__ void store_columns(const GdnDecodeStepArgs& a, uint32_t x0, uint32_t x1) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const int c = i / (kTaps - 1), j = i % (kTaps - 1);
      if (j >= kTaps - a.W)
        *column<Bits>(a, c, j) = static_cast<Bits>(j + 2 < kTaps ? history[i + (j + 2 < kTaps)] : c ? x1 : x0);
    }
  }
};

}  // namespace gdn
