#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/linear.h"
#include "kernels/pack_panel.h"
#include "kernels/packed_matrix.h"

namespace takt {
namespace {

// Enough for any matrix of a model, and far from overflow in the sizes below.
constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr int64_t kMaxCols = int64_t{1} << 24;

void check_columns(QuantType type, int64_t cols) {
  const PanelSpec spec = panel_spec(type);
  if (spec.is_float() || cols % spec.block_cols() == 0) return;
  throw std::invalid_argument(std::to_string(cols) + " columns do not fill blocks of " +
                              std::to_string(spec.block_cols()));
}

void check(std::span<const RawMatrix> parts) {
  if (parts.empty()) throw std::invalid_argument("a packed weight needs at least one matrix");
  for (const RawMatrix& part : parts) {
    const std::string shape = std::to_string(part.rows) + " x " + std::to_string(part.cols);
    if (int(part.type) >= kNumQuantTypes) {
      throw std::invalid_argument("unknown storage type " + std::to_string(int(part.type)));
    }
    if (part.target() != part.type && !can_be_packed_as(part.target())) {
      throw std::invalid_argument("nothing is converted to storage type " +
                                  std::to_string(int(part.target())));
    }
    if (part.raw == nullptr) throw std::invalid_argument("a matrix of " + shape + " has no data");
    if (part.rows <= 0 || part.cols <= 0 || part.rows > kMaxRows || part.cols > kMaxCols) {
      throw std::invalid_argument("a matrix of " + shape + " cannot be packed: rows must be 1.." +
                                  std::to_string(kMaxRows) + ", columns 1.." +
                                  std::to_string(kMaxCols));
    }
    if (part.cols != parts[0].cols) {
      throw std::invalid_argument("stacked matrices must have equal columns, not " +
                                  std::to_string(parts[0].cols) + " and " +
                                  std::to_string(part.cols));
    }
    for (const QuantType type : {part.type, part.target()}) check_columns(type, part.cols);
  }
}

void check_range(QuantType type, float largest) {
  const float limit = largest_packed(type);
  if (largest <= limit) return;
  throw std::invalid_argument("a magnitude of " + std::to_string(largest) +
                              " is more than the storage type can hold, " + std::to_string(limit));
}

// Panels of all parts, claimed one by one by `num_threads` threads, this one included. Returns the
// largest magnitude of each part that was converted.
std::vector<float> pack_all(std::span<const RawMatrix> raw, const std::vector<PackedPart>& parts,
              std::byte* memory, int num_threads) {
  int64_t num_panels = 0;
  for (const PackedPart& part : parts) num_panels += part.num_panels();
  std::atomic<int64_t> next{0};
  std::mutex lock;
  std::vector<float> largest(parts.size(), 0.0f);
  const auto work = [&] {
    PanelPacker packer(raw[0].cols);
    std::vector<float> mine(parts.size(), 0.0f);
    for (int64_t claimed = next++; claimed < num_panels; claimed = next++) {
      int64_t index = claimed;
      size_t p = 0;
      while (index >= parts[p].num_panels()) index -= parts[p++].num_panels();
      std::byte* to = memory + parts[p].offset + size_t(index) * parts[p].panel_bytes;
      mine[p] = std::max(mine[p], packer.pack(raw[p], index, to));
    }
    const std::scoped_lock held(lock);
    for (size_t p = 0; p < parts.size(); ++p) largest[p] = std::max(largest[p], mine[p]);
  };
  std::vector<std::jthread> threads;
  const int64_t num_helpers = std::min<int64_t>(num_threads, num_panels) - 1;
  for (int64_t i = 0; i < num_helpers; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  return largest;
}

}  // namespace

std::unique_ptr<PackedWeight> pack_weight(std::span<const RawMatrix> raw, const float* bias,
                                          int num_threads) {
  check(raw);
  std::vector<PackedPart> parts;
  const int64_t cols = raw[0].cols;
  int64_t rows = 0;
  size_t bytes = 0;
  for (const RawMatrix& matrix : raw) {
    const size_t panel_bytes = panel_spec(matrix.target()).panel_bytes(cols);
    parts.push_back({matrix.target(), rows, matrix.rows, bytes, panel_bytes});
    bytes = align64(bytes + size_t(parts.back().num_panels()) * panel_bytes);
    rows += matrix.rows;
  }
  std::vector<float> bias_copy;
  if (bias != nullptr) bias_copy.assign(bias, bias + rows);
  PanelMemory memory = allocate_panels(bytes);
  const std::vector<float> largest = pack_all(raw, parts, memory.get(), num_threads);
  for (size_t p = 0; p < parts.size(); ++p) check_range(parts[p].type, largest[p]);
  return std::make_unique<PackedMatrix>(std::move(parts), rows, cols, std::move(memory), bytes,
                                        std::move(bias_copy));
}

}  // namespace takt
