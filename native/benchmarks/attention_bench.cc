// CPU time of one thread in paged attention, by KV type: the shortest of many passes, as the share
// of a machine that others use says little about the mean.
//
//   attention_bench [PASSES]
//
// Shape: SmolLM2-135M's (9 query heads on 3 KV heads of 64). `decode C` is one token over a context
// of C in each of 30 layers, so that C = 4096 streams 94 MB of bf16; `prefill C` is the last 512
// tokens of a context of C in one layer.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "program/memory.h"
#include "tests/random.h"

namespace takt {
namespace {

constexpr int64_t kHeadDim = 64, kKVHeads = 3, kHeads = 3, kBlock = 16, kLayers = 30;
constexpr int kRows = 16;

double thread_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

class Cache {
 public:
  Cache(KVType type, int64_t context, int64_t layers)
      : half_(KVLayer{nullptr, nullptr, type, kKVHeads, kBlock, kHeadDim}.block_bytes() *
              size_t((context + kBlock - 1) / kBlock)),
        memory_(size_t(layers) * 2 * half_) {
    KVLayer layer{nullptr, nullptr, type, kKVHeads, kBlock, kHeadDim};
    const int64_t num_blocks = (context + kBlock - 1) / kBlock;
    for (int64_t b = 0; b < num_blocks; ++b) table_.push_back(int32_t((b * 7 + 3) % num_blocks));
    if (num_blocks % 7 == 0) {
      for (int64_t b = 0; b < num_blocks; ++b) table_[size_t(b)] = int32_t(b);
    }
    test::Random random(1);
    std::vector<float> kv(kHeadDim);
    for (int64_t l = 0; l < layers; ++l) {
      layer.k = memory_.data() + size_t(l) * 2 * half_;
      layer.v = layer.k + half_;
      layers_.push_back(layer);
      for (int64_t p = 0; p < num_blocks * kBlock; ++p) {
        if (p % 64 == 0) {
          for (float& x : kv) x = random.between(-2.0f, 2.0f);
        }
        for (int64_t h = 0; h < kKVHeads; ++h) {
          kv_store(layer, table_[size_t(p / kBlock)] * kBlock + p % kBlock, h, kv.data(),
                   kv.data());
        }
      }
    }
  }

  AttentionArgs args(int64_t layer) const {
    return {layers_[size_t(layer)], table_.data(), 0.125f, 0.0f, 0, kHeads};
  }

 private:
  std::vector<int32_t> table_;
  size_t half_;
  Memory memory_;
  std::vector<KVLayer> layers_;
};

// Attends `m` tokens from `first` on in all KV heads of a layer.
void attend(const AttentionArgs& args, int32_t first, int m, const std::vector<float>& query,
            std::vector<float>& result) {
  int32_t positions[kRows];
  const float* q[kRows];
  float* out[kRows];
  const size_t row = size_t(kHeads) * partial_floats(kHeadDim);
  for (int i = 0; i < m; ++i) {
    positions[i] = first + i;
    q[i] = &query[size_t(i * kHeads * kHeadDim)];
    out[i] = &result[size_t(i) * row];
  }
  const int64_t num_splits = (first + m + kSplit - 1) / kSplit;
  for (int64_t h = 0; h < kKVHeads; ++h) {
    for (int64_t split = 0; split < num_splits; ++split) {
      AttentionNext next;
      if (split + 1 < num_splits) {
        next = {h, split + 1};
      } else if (h + 1 < kKVHeads) {
        next = {h + 1, 0};
      }
      attention_split(args, h, split, m, positions, q, out, next);
    }
  }
}

template <class Pass>
double shortest(int passes, Pass pass) {
  double best = 1e9;
  for (int i = 0; i < passes; ++i) {
    const double start = thread_seconds();
    pass();
    best = std::min(best, thread_seconds() - start);
  }
  return best;
}

void report(KVType type, const char* name, int passes) {
  test::Random random(2);
  std::vector<float> query(size_t(kRows * kHeads * kHeadDim));
  for (float& x : query) x = random.between(-2.0f, 2.0f);
  std::vector<float> result(size_t(kRows * kHeads) * partial_floats(kHeadDim));
  for (const int64_t context : {int64_t(256), int64_t(464), int64_t(4096), int64_t(16384)}) {
    const int64_t layers = context > 5000 ? 8 : context == 256 ? 1 : kLayers;
    const Cache cache(type, context, layers);
    const double seconds = shortest(passes, [&] {
      for (int64_t l = 0; l < layers; ++l) {
        attend(cache.args(l), int32_t(context - 1), 1, query, result);
      }
    });
    const KVLayer layer = cache.args(0).kv;
    const double bytes = 2.0 * double(layer.block_bytes()) * double(context / kBlock * layers);
    std::printf("%-8s %-6s decode  %6d %9.1f us a layer %7.2f GB/s\n", selected_isa(), name,
                int(context), seconds / double(layers) * 1e6, bytes / seconds * 1e-9);
  }
  for (const int32_t context : {512, 4096}) {
    const Cache cache(type, context, 1);
    const double seconds = shortest(passes, [&] {
      for (int32_t p = context - 512; p < context; p += kRows) {
        attend(cache.args(0), p, kRows, query, result);
      }
    });
    const double pairs = 512.0 * (double(context) - 255.5);
    const double flops = pairs * double(4 * kHeadDim * kHeads * kKVHeads);
    std::printf("%-8s %-6s prefill %6d %9.1f us a layer %7.2f GFLOP/s\n", selected_isa(), name,
                context, seconds * 1e6, flops / seconds * 1e-9);
  }
}

}  // namespace
}  // namespace takt

int main(int argc, char** argv) {
  const int passes = argc > 1 ? std::atoi(argv[1]) : 20;
  for (const char* isa : takt::available_isas()) {
    if (isa[0] == 'g' && argc < 3) continue;
    takt::select_isa(isa);
    takt::report(takt::KVType::kBF16, "bf16", passes);
    takt::report(takt::KVType::kF32, "f32", passes);
    takt::report(takt::KVType::kFP8E4M3, "fp8", passes);
    takt::report(takt::KVType::kInt8, "int8", passes);
  }
}
