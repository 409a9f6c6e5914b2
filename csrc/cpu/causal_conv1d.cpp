#include <cmath>

#include "conv.h"
#include "gen/kernels.h"

namespace gdn::cpu {

namespace {

constexpr int64_t kBlock = 64;  // channels that are walked along together

// Tokens [bos, eos) of batch row b, which are sequence n, or of none (n < 0).
struct Span {
  int64_t n, b, bos, eos;
};

template <class T>
struct Convolution {
  const CausalConv1dArgs& a;
  Span span;
  int64_t H = a.W - 1, length = span.eos - span.bos;
  const T* x = static_cast<const T*>(a.x) + span.b * a.x_at.stride_b + span.bos * a.x_at.stride_t;
  T* y = static_cast<T*>(a.y) + span.b * a.y_at.stride_b + span.bos * a.y_at.stride_t;
  int64_t slot = -1, first = 0, position = 0;  // column of the history's first input; in a ring, of the first token
  bool live = span.n >= 0, history = false;

  Convolution(const CausalConv1dArgs& args, const Span& span_) : a(args), span(span_) {
    if (!live || length <= 0) return;
    slot = a.indices.words ? load_index(a.indices, span.n) : span.n;
    live = !a.indices.words || (slot >= a.min_slot && slot < a.state.slots);
    history = a.state.data && (a.has_state ? a.has_state[span.n * a.has_state_stride] != 0 : a.history != 0);
    first = a.line - H;
    if (a.accepted.words) {
      first = load_index(a.accepted, span.n) - 1;
      live = live && first >= 0 && first <= a.line - H && length <= a.line - H + 1;
    }
    if (a.positions.words) {
      position = load_index(a.positions, span.n);
      live = live && position >= 0;
      first = live ? position % a.line + a.line - H : 0;
    }
    if (a.also.words) {
      const int64_t column = a.accepted.words ? first : 0;
      live = live && column >= 0 && column < a.also.columns;
      const int64_t also = live ? load_index(a.also, span.n, column) : -1;
      live = live && also >= a.min_slot && also < a.n_also;
    }
    live = live && length <= a.most_tokens;
    if (a.windows.data) live = live && length <= a.window_tokens;
    if (a.parents.words) live = live && length <= a.parents.columns;
  }

  // The token before token t in a tree; -1: none, which anything but an earlier token says.
  int64_t parent(int64_t t) const {
    const int64_t p = t > 0 ? load_index(a.parents, span.n, t) : -1;
    return p >= 0 && p < t ? p : -1;
  }
  int64_t sample(int64_t t) const { return load_index(a.seq_idx, span.b, span.bos + t); }
  // Input t of the channel whose column is `at` elements from x's first.
  float input(int64_t t, int64_t at) const { return static_cast<float>(x[t * a.x_at.stride_t + at]); }
  float state(int64_t c, int64_t j) const { return load_line<T>(a.state, slot, c, a.positions.words ? j % a.line : j); }

  // The history of channel c, oldest first.
  void past(int64_t c, float* h) const {
    for (int64_t i = 0; i < H; ++i) h[i] = history ? state(c, first + i) : 0;
  }

  // What the state of channel c becomes, of which h was the history.
  void update(int64_t c, int64_t at, const float* h) const {
    auto put = [&](int64_t j, float value) { store_line<T>(a.state, slot, c, j, value); };
    if (a.positions.words) {
      for (int64_t t = 0; t < length; ++t) put((position + t) % a.line, input(t, at));
    } else if (a.accepted.words) {
      for (int64_t i = 1; i < H; ++i) put(i - 1, h[i]);
      for (int64_t t = 0; t < length; ++t) put(H - 1 + t, input(t, at));
    } else {
      for (int64_t j = 0; j < a.line; ++j) {  // upwards: columns are read before they are written
        const int64_t t = length + j - a.line;
        put(j, t >= 0 ? input(t, at) : history ? state(c, a.line + t) : 0);
      }
    }
  }

  // The inputs before token t in a tree: ancestors, then the history.
  void ancestors(int64_t t, int64_t at, const float* h, float* taps) const {
    for (int64_t i = H - 1, used = 0; i >= 0; --i) {
      t = parent(t);
      taps[i] = t >= 0 ? input(t, at) : h[H - 1 - used++];
    }
  }

  void keep(const LinesArg& lines, int64_t row, int64_t offset, int64_t min_slot, int64_t c, const float* h) const {
    for (int64_t i = 0; i < H && row >= min_slot && row < lines.slots; ++i)
      store_line<T>(lines, row, c, i, h[i], offset);
  }

  // After t tokens: whether they end at a checkpoint, and its slot.
  int64_t checkpoint(int64_t t) const {
    const int64_t prefix = a.prefix_lens.words ? std::max<int64_t>(load_index(a.prefix_lens, span.n), 0) : 0;
    if ((prefix + t) % a.checkpoint_every) return -1;
    const int64_t j = (prefix + t) / a.checkpoint_every - prefix / a.checkpoint_every - 1;
    return j < a.checkpoint_indices.columns ? load_index(a.checkpoint_indices, span.n, j) : -1;
  }

  // Channels [d, d + n). The state is written before any result, which may take x's place.
  void run(int64_t d, int64_t n) const {
    if (!a.seq_idx.words && !a.parents.words && !a.windows.data && !a.checkpoints.data)
      return H == 3 ? walk<3>(d, n) : H == 2 ? walk<2>(d, n) : walk<1>(d, n);
    float w[kBlock][4], bias[kBlock], past_[kBlock][4], window[kBlock][4];
    int64_t at[kBlock];
    for (int64_t i = 0; i < n; ++i) {
      at[i] = column(a.groups, d + i) * a.x_at.stride_d;
      load_filter<T>(a.filter, a.W, d + i, w[i], bias[i]);
      past(d + i, past_[i]);
      std::copy_n(past_[i], H, window[i]);
      if (a.state.data && !a.windows.data && !a.reads_only) update(d + i, at[i], past_[i]);
    }
    const int64_t kept = a.window_indices.words ? load_index(a.window_indices, span.n) : span.n;
    for (int64_t t = 0; t < length; ++t) {
      const bool begins = a.seq_idx.words && t > 0 && sample(t) != sample(t - 1);
      const int64_t marked = a.checkpoints.data ? checkpoint(t + 1) : -1;
      for (int64_t i = 0; i < n; ++i) {
        if (begins) std::fill_n(window[i], H, 0.0f);
        if (a.parents.words) ancestors(t, at[i], past_[i], window[i]);
        float sum = bias[i];
        for (int64_t j = 0; j < H; ++j) sum += w[i][j] * window[i][j];
        const float now = input(t, at[i]);
        sum += w[i][H] * now;
        std::copy_n(window[i] + 1, H - 1, window[i]);
        window[i][H - 1] = now;
        y[t * a.y_at.stride_t + (d + i) * a.y_at.stride_d] = round_to<T>(a.seq_idx.words && sample(t) < 0 ? 0.0f
                                                                         : a.filter.activation == kSilu   ? silu(sum)
                                                                                                          : sum);
        if (a.windows.data) keep(a.windows, kept, t * a.window_stride_t, 0, d + i, window[i]);
        if (marked >= 0) keep(a.checkpoints, marked, 0, a.min_slot, d + i, window[i]);
      }
    }
  }

  // The same where nothing happens on the way, with TAPS inputs of history: channels side by side.
  template <int64_t TAPS>
  void walk(int64_t d, int64_t n) const {
    float w[TAPS + 1][kBlock] = {}, h[TAPS][kBlock] = {}, bias[kBlock] = {}, now[kBlock] = {}, result[kBlock];
    int64_t at[kBlock];
    bool together = true;  // in x
    for (int64_t i = 0; i < n; ++i) {
      float filter[4], old[4];
      at[i] = column(a.groups, d + i) * a.x_at.stride_d;
      together = together && at[i] == at[0] + i;
      load_filter<T>(a.filter, a.W, d + i, filter, bias[i]);
      past(d + i, old);
      for (int64_t j = 0; j < TAPS; ++j) w[j][i] = filter[j], h[j][i] = old[j];
      w[TAPS][i] = filter[TAPS];
      if (a.state.data && !a.reads_only) update(d + i, at[i], old);
    }
    for (int64_t t = 0; t < length; ++t) {
      const T* in = x + t * a.x_at.stride_t;
      if (together)
        for (int64_t i = 0; i < n; ++i) now[i] = static_cast<float>(in[at[0] + i]);
      else
        for (int64_t i = 0; i < n; ++i) now[i] = static_cast<float>(in[at[i]]);
      for (int64_t i = 0; i < kBlock; ++i) {
        float sum = bias[i];
        for (int64_t j = 0; j < TAPS; ++j) sum += w[j][i] * h[j][i];
        result[i] = sum + w[TAPS][i] * now[i];
        for (int64_t j = 0; j + 1 < TAPS; ++j) h[j][i] = h[j + 1][i];
        h[TAPS - 1][i] = now[i];
      }
      if (a.filter.activation == kSilu)
        for (int64_t i = 0; i < kBlock; ++i) result[i] = silu(result[i]);
      T* out = y + t * a.y_at.stride_t + d * a.y_at.stride_d;
      if (a.y_at.stride_d == 1)
        for (int64_t i = 0; i < n; ++i) out[i] = round_to<T>(result[i]);
      else
        for (int64_t i = 0; i < n; ++i) out[i * a.y_at.stride_d] = round_to<T>(result[i]);
    }
  }

  void zero(int64_t d, int64_t n) const {
    for (int64_t t = 0; t < length; ++t)
      for (int64_t i = d; i < d + n; ++i) y[t * a.y_at.stride_t + i * a.y_at.stride_d] = static_cast<T>(0.0f);
  }
};

}  // namespace

void causal_conv1d(const kernels::causal_conv1d::Keys& keys, const kernels::causal_conv1d::Args& a) {
  with_float(keys.T, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const bool varlen = a.cu_seqlens.words != 0;
    const Offsets cu{a.cu_seqlens.low, a.cu_seqlens.stride, a.cu_seqlens.words, a.T};
    const int64_t blocks = (a.D + kBlock - 1) / kBlock, N = a.N;
    // Items N and N + 1: the tokens before all sequences, and after them.
    parallel((N + 2) * blocks, kBlock * (N > 0 ? a.T / N + 1 : 1) * a.W, [&](int64_t item) {
      const int64_t s = item / blocks, d = item % blocks * kBlock, n = std::min(kBlock, a.D - d);
      Span span{s, s, 0, a.T};
      if (varlen)
        span = s < N ? Span{s, 0, cu[s], cu[s + 1]} : s == N ? Span{-1, 0, 0, cu[0]} : Span{-1, 0, cu[N], a.T};
      else if (s >= N)
        return;
      const Convolution<T> row(a, span);
      if (row.length <= 0) return;
      row.live ? row.run(d, n) : row.zero(d, n);
    });
  });
}

}  // namespace gdn::cpu
