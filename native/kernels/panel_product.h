// The product of a panel with a few rows, written once for all instruction sets: weights stream
// past, each group unpacked in registers and used at once.
//
// Per group of 32 columns, in the order of K, each operation rounded to f32 as written:
//   isum = sum of (q - zero) * x_q                  exact, |isum| < 2^24, so exact in f32 too
//   acc = fma(scale_w * scale_x, isum, acc)         Q6_K: of columns 0..15, then of 16..31
//   acc = fma(min_w, scaled_sum_x, acc)             types with minima
// Every kernel does this for each element alone, whatever the block's size, so blocks of any
// size on any instruction set give equal bits.
#pragma once
#include "kernels/activation.h"
#include "kernels/lanes.h"
#include "kernels/linear_kernels.h"
#include "kernels/panel.h"

namespace takt::TAKT_ISA {

// Bytes ahead of the stream that short blocks prefetch: the hardware's prefetchers stop at a page.
// Decode steps of SmolLM2, median of five, 2 vCPUs of a Xeon: 4.82 ms at 2,048 bytes, 4.54 at 4,096,
// 4.41 at 8,192; without any, over 7.
inline constexpr int kPrefetchBytes = 8192;

struct GroupScales {
  F32x16 scale;
  F32x16 scale_high;  // of columns 16..31, Q6_K only
  F32x16 min;
};

// `d` and `dmin` are the block's upper scales; for kSuperMin `dmin` comes negated.
template <Scales kScales>
TAKT_INLINE GroupScales load_scales(const std::byte* group, F32x16 d, F32x16 dmin) {
  GroupScales out{};
  if constexpr (kScales == Scales::kGroup || kScales == Scales::kGroupMin) {
    out.scale = load_f16(group);
  }
  if constexpr (kScales == Scales::kGroupMin) out.min = load_f16(group + 32);
  if constexpr (kScales == Scales::kSuperMin) {
    out.scale = mul(d, load_u8(group));
    out.min = mul(dmin, load_u8(group + 16));
  }
  if constexpr (kScales == Scales::kSuperHalf) {
    out.scale = mul(d, load_s8(group));
    out.scale_high = mul(d, load_s8(group + 16));
  }
  return out;
}

// Asks for a group's bytes.
template <QuantType kType>
TAKT_INLINE void prefetch_group(const std::byte* at) {
  for (int line = 0; line < panel_spec(kType).group_bytes(); line += kVectorBytes) {
    __builtin_prefetch(at + line);
  }
}

// A panel's groups one after the other.
template <QuantType kType>
class GroupStream {
 public:
  static constexpr PanelSpec kSpec = panel_spec(kType);

  TAKT_INLINE explicit GroupStream(const std::byte* panel)
      : at_(panel), d_(zero_f32()), dmin_(zero_f32()) {}

  // Unpacks group number `group`: each call takes the next.
  TAKT_INLINE GroupScales next(int64_t group, Bytes64* q) {
    const GroupScales w = next_scales(group);
    unpack<kSpec.bits>(at_, q);
    at_ += kVectorBytes * kSpec.bits;
    return w;
  }
  // The same for dot_raised.
  TAKT_INLINE GroupScales next_raised(int64_t group, Bytes64* q) {
    const GroupScales w = next_scales(group);
    unpack_raised<kSpec.bits>(at_, q);
    at_ += kVectorBytes * kSpec.bits;
    return w;
  }

  // The scales of group number `group`, and where its packed q lie.
  TAKT_INLINE GroupScales next_packed(int64_t group, const std::byte** q) {
    const GroupScales w = next_scales(group);
    *q = at_;
    at_ += kVectorBytes * kSpec.bits;
    return w;
  }

  // Where the next group lies.
  const std::byte* at() const { return at_; }

 private:
  TAKT_INLINE GroupScales next_scales(int64_t group) {
    if constexpr (kSpec.is_super()) {
      if (group % kSpec.groups_per_block() == 0) {
        d_ = load_f16(at_);
        if constexpr (kSpec.has_min()) dmin_ = mul(load_f16(at_ + 32), broadcast(-1.0f));
        at_ += kSpec.header_bytes();
      }
    }
    const GroupScales w = load_scales<kSpec.scales>(at_, d_, dmin_);
    at_ += kSpec.group_scale_bytes();
    return w;
  }

  const std::byte* at_;
  F32x16 d_;
  F32x16 dmin_;
};

// Where the parts of a q8 row of `cols` columns lie (activation.h).
struct Q8Offsets {
  size_t scale;
  size_t scaled_sum;
  size_t sum;
};

TAKT_INLINE Q8Offsets q8_offsets(int64_t cols) {
  const size_t q_bytes = (size_t(cols) + 63) & ~size_t{63};
  const size_t scale_bytes = (size_t(cols / kGroup) * 4 + 63) & ~size_t{63};
  return {q_bytes, q_bytes + scale_bytes, q_bytes + 2 * scale_bytes};
}

TAKT_INLINE float load_float(const std::byte* p) {
  float out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}

// The dot product of add_group for a group whose q came from unpack_raised.
struct RaisedDot {
  template <int kBits, int kZero, int kVectors>
  TAKT_INLINE static I32x16 of(const Bytes64* q, const int8_t* x, const int16_t* sum) {
    return dot_raised<kBits, kZero, kVectors>(q, x, sum);
  }
};

// acc plus what a group adds to it.
template <QuantType kType, class Dot>
TAKT_INLINE F32x16 add_group(F32x16 acc, const Bytes64* q, const GroupScales& w,
                             const std::byte* row, const Q8Offsets& at, int64_t group) {
  constexpr PanelSpec kSpec = panel_spec(kType);
  const int8_t* x = reinterpret_cast<const int8_t*>(row + kGroup * group);
  const int16_t* sum = reinterpret_cast<const int16_t*>(row + at.sum + 4 * group);
  const F32x16 scale_x = broadcast(load_float(row + at.scale + 4 * group));
  if constexpr (kSpec.scales == Scales::kSuperHalf) {
    const F32x16 low = to_f32(Dot::template of<kSpec.bits, kSpec.zero, 4>(q, x, sum));
    const F32x16 high =
        to_f32(Dot::template of<kSpec.bits, kSpec.zero, 4>(q + 4, x + kHalfGroup, sum + 1));
    acc = fma(mul(w.scale, scale_x), low, acc);
    return fma(mul(w.scale_high, scale_x), high, acc);
  } else {
    const F32x16 isum = to_f32(Dot::template of<kSpec.bits, kSpec.zero, 8>(q, x, sum));
    acc = fma(mul(w.scale, scale_x), isum, acc);
    if constexpr (!kSpec.has_min()) return acc;
    return fma(w.min, broadcast(load_float(row + at.scaled_sum + 4 * group)), acc);
  }
}

template <QuantType kType, int kRows>
void quant_product(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                   const ReadAhead& ahead, float* tile) {
  const Q8Offsets at = q8_offsets(cols);
  F32x16 acc[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) acc[i] = zero_f32();
  GroupStream<kType> stream(panel);
  for (int64_t group = 0; group < cols / kGroup; ++group) {
    prefetch_group<kType>(ahead.from(stream.at() + kPrefetchBytes));
    Bytes64 q[8];
    const GroupScales w = stream.next_raised(group, q);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      acc[i] = add_group<kType, RaisedDot>(acc[i], q, w, rows[i], at, group);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) store(tile + kPanelRows * i, acc[i]);
}

}  // namespace takt::TAKT_ISA
