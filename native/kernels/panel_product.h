// The products of a panel with a block of rows, written once for all instruction sets.
//
// Per group of 32 columns, in the order of K, each operation rounded to f32 as written:
//   isum = sum of (q - zero) * x_q               exact, |isum| < 2^24, so exact in f32 too
//   part = (scale_w * scale_x) * isum            for Q6_K: of columns 0..15, plus that of 16..31
//   part = part + min_w * scaled_sum_x           types with minima
//   acc = acc + part
// Every kernel does this for each element alone, whatever the block's size, so blocks of any
// size on any instruction set give equal bits.
#pragma once
#include "kernels/activation.h"
#include "kernels/lanes.h"
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

// Where the parts of a q8 row of `cols` columns lie (activation.h).
struct Q8Offsets {
  size_t scale;
  size_t scaled_sum;
  size_t sum;
};

TAKT_INLINE float load_float(const std::byte* p) {
  float out;
  std::memcpy(&out, p, sizeof(out));
  return out;
}

template <QuantType kType>
TAKT_INLINE F32x16 group_product(const Bytes64* q, const GroupScales& w, const std::byte* row,
                                 const Q8Offsets& at, int64_t group) {
  constexpr PanelSpec kSpec = panel_spec(kType);
  const int8_t* x = reinterpret_cast<const int8_t*>(row + kGroup * group);
  const int16_t* sum = reinterpret_cast<const int16_t*>(row + at.sum + 4 * group);
  const F32x16 scale_x = broadcast(load_float(row + at.scale + 4 * group));
  if constexpr (kSpec.scales == Scales::kSuperHalf) {
    const F32x16 low = to_f32(dot<kSpec.bits, kSpec.zero, 4>(q, x, sum));
    const F32x16 high = to_f32(dot<kSpec.bits, kSpec.zero, 4>(q + 4, x + kHalfGroup, sum + 1));
    return add(mul(mul(w.scale, scale_x), low), mul(mul(w.scale_high, scale_x), high));
  } else {
    const F32x16 isum = to_f32(dot<kSpec.bits, kSpec.zero, 8>(q, x, sum));
    const F32x16 part = mul(mul(w.scale, scale_x), isum);
    if constexpr (!kSpec.has_min()) return part;
    return add(part, mul(w.min, broadcast(load_float(row + at.scaled_sum + 4 * group))));
  }
}

template <QuantType kType, int kRows>
void quant_product(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                   float* tile) {
  constexpr PanelSpec kSpec = panel_spec(kType);
  const int64_t num_groups = cols / kGroup;
  const size_t q_bytes = (size_t(cols) + 63) & ~size_t{63};
  const size_t scale_bytes = (size_t(num_groups) * 4 + 63) & ~size_t{63};
  const Q8Offsets at = {q_bytes, q_bytes + scale_bytes, q_bytes + 2 * scale_bytes};

  F32x16 acc[kRows];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) acc[i] = zero_f32();
  F32x16 d = zero_f32();
  F32x16 dmin = zero_f32();
  const std::byte* from = panel;
  for (int64_t group = 0; group < num_groups; ++group) {
    if constexpr (kSpec.is_super()) {
      if (group % kSpec.groups_per_block() == 0) {
        d = load_f16(from);
        if constexpr (kSpec.has_min()) dmin = mul(load_f16(from + 32), broadcast(-1.0f));
        from += kSpec.header_bytes();
      }
    }
    if constexpr (kRows <= 4) {
      for (int line = 0; line < kSpec.group_bytes(); line += 64) {
        __builtin_prefetch(from + kPrefetchBytes + line);
      }
    }
    const GroupScales w = load_scales<kSpec.scales>(from, d, dmin);
    Bytes64 q[8];
    unpack<kSpec.bits>(from + kSpec.group_scale_bytes(), q);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      acc[i] = add(acc[i], group_product<kType>(q, w, rows[i], at, group));
    }
    from += kSpec.group_bytes();
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i) store(tile + kPanelRows * i, acc[i]);
}

}  // namespace takt::TAKT_ISA
