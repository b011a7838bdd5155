#include "measure/instruction_peak.h"

#include <cstdint>
#include <span>
#include <stdexcept>

#include "measure/rate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace takt {
namespace {

// Sums in progress: more than latency (5 cycles) times units (2), so that units never idle.
constexpr int kChains = 12;
constexpr int kRounds = 20'000;

// Runs kRounds rounds of the instruction on every chain; the sums depend on `seed`, and what is
// returned on all of them, so that nothing can be left out.
using Kernel = int (*)(int seed);

struct Instruction {
  const char* name;
  const char* arithmetic;
  bool (*is_usable)();
  Kernel kernel;
  double operations_per_call;
};

#if defined(__x86_64__)

// `type` sums[kChains], each replaced by `next` of itself, kRounds times; returns their first words
// together.
#define TAKT_CHAINS(type, first, next)                           \
  type sums[kChains];                                            \
  for (int i = 0; i < kChains; ++i) sums[i] = first;             \
  for (int round = 0; round < kRounds; ++round) {                \
    _Pragma("GCC unroll 12") for (int i = 0; i < kChains; ++i) { \
      const type sum = sums[i];                                  \
      sums[i] = next;                                            \
    }                                                            \
  }                                                              \
  int result = 0;                                                \
  for (int i = 0; i < kChains; ++i) {                            \
    const type last = sums[i];                                   \
    int word;                                                    \
    __builtin_memcpy(&word, &last, sizeof word);                 \
    result ^= word;                                              \
  }                                                              \
  return result

__attribute__((target("avx512f,avx512vnni"))) int vpdpbusd_zmm(int seed) {
  const __m512i a = _mm512_set1_epi32(seed | 0x01020304), b = _mm512_set1_epi32(0x04030201);
  TAKT_CHAINS(__m512i, _mm512_set1_epi32(seed + i), _mm512_dpbusd_epi32(sum, a, b));
}

__attribute__((target("avx2,avxvnni"))) int vpdpbusd_ymm(int seed) {
  const __m256i a = _mm256_set1_epi32(seed | 0x01020304), b = _mm256_set1_epi32(0x04030201);
  TAKT_CHAINS(__m256i, _mm256_set1_epi32(seed + i), _mm256_dpbusd_avx_epi32(sum, a, b));
}

// Three instructions do what vpdpbusd does. The products take the sum as an operand: of constants
// the compiler would multiply once.
__attribute__((target("avx2"))) int vpmaddubsw_ymm(int seed) {
  const __m256i b = _mm256_set1_epi32(0x04030201), ones = _mm256_set1_epi16(1);
  TAKT_CHAINS(__m256i, _mm256_set1_epi32(seed + i),
              _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(sum, b), ones)));
}

__attribute__((target("avx512f,avx512bf16"))) int vdpbf16ps_zmm(int seed) {
  const __m512bh a = (__m512bh)_mm512_set1_epi32(0x3c003c00 + (seed & 1));  // small values
  const __m512bh b = (__m512bh)_mm512_set1_epi32(0x3f803f80);                // ones
  TAKT_CHAINS(__m512, _mm512_set1_ps(float(seed + i)), _mm512_dpbf16_ps(sum, a, b));
}

__attribute__((target("avx512f"))) int vfmadd_zmm(int seed) {
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(float(seed));
  TAKT_CHAINS(__m512, _mm512_set1_ps(float(seed + i)), _mm512_fmadd_ps(sum, a, b));
}

__attribute__((target("avx2,fma"))) int vfmadd_ymm(int seed) {
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(float(seed));
  TAKT_CHAINS(__m256, _mm256_set1_ps(float(seed + i)), _mm256_fmadd_ps(sum, a, b));
}

int mulps_xmm(int seed) {
  const __m128 a = _mm_set1_ps(0.5f), b = _mm_set1_ps(float(seed));
  TAKT_CHAINS(__m128, _mm_set1_ps(float(seed + i)), _mm_add_ps(_mm_mul_ps(sum, a), b));
}

// A tile has 16 rows of 64 bytes. Six of the eight are sums: a product takes 16 cycles to issue and
// 52 to finish.
constexpr int kTileChains = 6;
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

#define TAKT_TILES(product)                                               \
  const TileConfig config;                                                \
  alignas(64) int32_t tile[16][16];                                       \
  for (int i = 0; i < 256; ++i) tile[i / 16][i % 16] = 0x3c013c01 ^ seed; \
  _tile_loadconfig(&config);                                              \
  _tile_zero(0); _tile_zero(1); _tile_zero(2);                            \
  _tile_zero(3); _tile_zero(4); _tile_zero(5);                            \
  _tile_loadd(6, tile, 64);                                               \
  _tile_loadd(7, tile, 64);                                               \
  for (int round = 0; round < kRounds / 16; ++round) {                    \
    product(0, 6, 7); product(1, 6, 7); product(2, 6, 7);                 \
    product(3, 6, 7); product(4, 6, 7); product(5, 6, 7);                 \
  }                                                                       \
  int result = 0;                                                         \
  _tile_stored(0, tile, 64); result ^= tile[0][0];                        \
  _tile_stored(5, tile, 64); result ^= tile[0][0];                        \
  _tile_release();                                                        \
  return result

__attribute__((target("amx-tile,amx-int8"))) int tdpbusd(int seed) { TAKT_TILES(_tile_dpbusd); }
__attribute__((target("amx-tile,amx-bf16"))) int tdpbf16ps(int seed) {
  TAKT_TILES(_tile_dpbf16ps);
}

// Linux gives tile registers to a process that asks (arch_prctl's ARCH_REQ_XCOMP_PERM for the
// state component XTILEDATA), since they make every thread's saved state 8 KiB larger.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

double chained(int operations) { return double(kChains) * kRounds * operations; }
double tiled(int operations) { return double(kTileChains) * (kRounds / 16) * operations; }

#define TAKT_HAS(...) [] { return __VA_ARGS__; }
#define TAKT_CPU(feature) (__builtin_cpu_supports(feature) != 0)

std::span<const Instruction> known_instructions() {
  static const Instruction kInstructions[] = {
      {"tdpbusd", "int8", TAKT_HAS(TAKT_CPU("amx-int8") && may_use_tiles()), &tdpbusd,
       tiled(2 * 16 * 16 * 64)},
      {"tdpbf16ps", "bf16", TAKT_HAS(TAKT_CPU("amx-bf16") && may_use_tiles()), &tdpbf16ps,
       tiled(2 * 16 * 16 * 32)},
      {"vpdpbusd zmm", "int8", TAKT_HAS(TAKT_CPU("avx512vnni")), &vpdpbusd_zmm, chained(128)},
      {"vpdpbusd ymm", "int8", TAKT_HAS(TAKT_CPU("avxvnni")), &vpdpbusd_ymm, chained(64)},
      {"vpmaddubsw ymm", "int8", TAKT_HAS(TAKT_CPU("avx2")), &vpmaddubsw_ymm, chained(64)},
      {"vdpbf16ps zmm", "bf16", TAKT_HAS(TAKT_CPU("avx512bf16")), &vdpbf16ps_zmm, chained(64)},
      {"vfmadd zmm", "f32", TAKT_HAS(TAKT_CPU("avx512f")), &vfmadd_zmm, chained(32)},
      {"vfmadd ymm", "f32", TAKT_HAS(TAKT_CPU("avx2") && TAKT_CPU("fma")), &vfmadd_ymm,
       chained(16)},
      {"mulps and addps xmm", "f32", TAKT_HAS(true), &mulps_xmm, chained(8)},
  };
  return kInstructions;
}

#else

int multiply_add(int seed) {
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = float(seed + i);
  for (int round = 0; round < kRounds; ++round) {
    for (float& sum : sums) sum = sum * 0.5f + float(seed);
  }
  float total = 0;
  for (float sum : sums) total += sum;
  return int(total);
}

std::span<const Instruction> known_instructions() {
  static const Instruction kInstructions[] = {
      {"multiply and add", "f32", [] { return true; }, &multiply_add,
       2.0 * kChains * kRounds},
  };
  return kInstructions;
}

#endif

}  // namespace

std::vector<MultiplyInstruction> multiply_instructions() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#endif
  std::vector<MultiplyInstruction> usable;
  for (const Instruction& instruction : known_instructions()) {
    if (instruction.is_usable()) usable.push_back({instruction.name, instruction.arithmetic});
  }
  return usable;
}

double instruction_peak(const std::string& name, int num_threads, double seconds) {
  for (const Instruction& instruction : known_instructions()) {
    if (instruction.name != name || !instruction.is_usable()) continue;
    return work_rate(num_threads, seconds, [&](int thread) -> Work {
      return [&, sink = thread]() mutable {
        sink = (sink ^ instruction.kernel(sink & 1)) & 0xff;
        asm volatile("" : "+r"(sink));
        return instruction.operations_per_call;
      };
    });
  }
  throw std::invalid_argument("'" + name + "' is no multiply instruction of this CPU");
}

}  // namespace takt
