// Sixteen lanes, one for each row of a panel, in the vectors of the instruction set that the file
// is compiled for. Every build offers the same names with the same results, bit for bit:
//
//   F32x16   zero_f32, broadcast, load_f32, load_f16, load_bf16, load_u8, load_s8, store, add, mul,
//            fma(a, b, c): a * b + c, rounded once
//   I32x16   to_f32
//   Bytes64  64 bytes q of a panel (panel.h); load_bytes, store_bytes
//   unpack<bits>(from, q)       the 8 vectors of a group
//   dot<bits, zero, n>(q, x, sum)
//            of n vectors with 4 n activations: sum of (q - zero) * x for each row, exact;
//            `sum` holds the activations' sums over 16, one for each 4 vectors
//   unpack_raised, dot_raised
//            the same in two steps that fit each other, for q that are used once
#pragma once

#define TAKT_INLINE [[gnu::always_inline]] inline

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include "kernels/lanes_avx512.h"
#elif defined(__AVX2__)
#include "kernels/lanes_avx2.h"
#else
#include "kernels/lanes_generic.h"
#endif
