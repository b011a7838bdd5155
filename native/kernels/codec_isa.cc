// Plain loops, which the compiler turns into vectors of each instruction set. Not so fp16, whose
// conversions have branches in plain C++ and are instructions elsewhere.
#include <cstdint>

#include "kernels/codec_kernels.h"
#include "kernels/float16.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace takt::TAKT_ISA {
namespace {

constexpr int64_t kGroupSize = 32;
constexpr float kLargestF16 = 65504.0f;

template <bool kAdds>
inline void put(float x, float& to) {
  to = kAdds ? to + x : x;
}

template <bool kAdds>
void from_bf16(const uint16_t* __restrict x, int64_t n, float* __restrict out) {
  for (int64_t i = 0; i < n; ++i) put<kAdds>(float_from_bf16(x[i]), out[i]);
}

template <bool kAdds>
void from_int8(const int8_t* __restrict q, const float* __restrict scale, int64_t n,
               float* __restrict out) {
  for (int64_t group = 0; group < n / kGroupSize; ++group) {
    const float s = scale[group];
    for (int64_t i = group * kGroupSize; i < (group + 1) * kGroupSize; ++i) {
      put<kAdds>(static_cast<float>(q[i]) * s, out[i]);
    }
  }
}

template <bool kAdds>
void from_f16(const uint16_t* __restrict x, int64_t n, float* __restrict out) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    __m256 eight = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)));
    if constexpr (kAdds) eight = _mm256_add_ps(_mm256_loadu_ps(out + i), eight);
    _mm256_storeu_ps(out + i, eight);
  }
#endif
  for (; i < n; ++i) put<kAdds>(float_from_half(x[i]), out[i]);
}

void round_f16(const float* __restrict x, int64_t n, uint16_t* __restrict out) {
  int64_t i = 0;
#if defined(__F16C__)
  const __m256 high = _mm256_set1_ps(kLargestF16), low = _mm256_set1_ps(-kLargestF16);
  for (; i + 8 <= n; i += 8) {
    // Of two operands the second is taken if one is NaN.
    const __m256 held = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_loadu_ps(x + i)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i),
                     _mm256_cvtps_ph(held, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  for (; i < n; ++i) {
    const float below = x[i] > kLargestF16 ? kLargestF16 : x[i];
    out[i] = half_from_float(below < -kLargestF16 ? -kLargestF16 : below);
  }
}

}  // namespace

const CodecKernels kCodecKernels = {&round_f16,      &from_bf16<false>, &from_f16<false>,
                                    &from_int8<false>, &from_bf16<true>,  &from_f16<true>,
                                    &from_int8<true>};

}  // namespace takt::TAKT_ISA
