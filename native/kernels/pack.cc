#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "kernels/linear.h"
#include "kernels/pack_block.h"
#include "kernels/packed_matrix.h"

namespace takt {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// Enough for any matrix of a model, and far from overflow in the sizes below.
constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr int64_t kMaxCols = int64_t{1} << 24;

// Uninitialised; on huge pages where the system has them, as a pass over all weights touches each
// page once and would miss the TLB on each small one.
PanelMemory allocate(size_t bytes) {
  const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, size));
  if (p == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // A refusal is no error: small pages serve too.
  if (alignment == kHugePage) (void)madvise(p, size, MADV_HUGEPAGE);
#endif
  return PanelMemory(p);
}

void check(std::span<const RawMatrix> parts) {
  if (parts.empty()) throw std::invalid_argument("a packed weight needs at least one matrix");
  for (const RawMatrix& part : parts) {
    const std::string shape = std::to_string(part.rows) + " x " + std::to_string(part.cols);
    if (int(part.type) >= kNumQuantTypes) {
      throw std::invalid_argument("unknown storage type " + std::to_string(int(part.type)));
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
    const int block_cols = panel_spec(part.type).block_cols();
    if (part.cols % block_cols != 0) {
      throw std::invalid_argument(std::to_string(part.cols) + " columns do not fill blocks of " +
                                  std::to_string(block_cols));
    }
  }
}

// One panel of a float type: element by element, from rows to columns.
void pack_float_panel(int bytes_per_element, const std::byte* raw, size_t row_bytes, int num_rows,
                      int64_t cols, std::byte* to) {
  const auto size = size_t(bytes_per_element);
  for (int lane = 0; lane < num_rows; ++lane) {
    const std::byte* from = raw + size_t(lane) * row_bytes;
    for (int64_t k = 0; k < cols; ++k) {
      std::memcpy(to + (size_t(k) * kPanelRows + size_t(lane)) * size, from + size_t(k) * size,
                  size);
    }
  }
}

void pack_quant_panel(QuantType type, const std::byte* raw, size_t row_bytes, int num_rows,
                      int64_t num_blocks, std::byte* to) {
  const auto file_bytes = size_t(file_block_bytes(type));
  const auto panel_bytes = size_t(panel_spec(type).block_bytes());
  QuantBlock block;
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (int lane = 0; lane < num_rows; ++lane) {
      read_block(type, raw + size_t(lane) * row_bytes + size_t(b) * file_bytes, &block);
      write_block(type, block, lane, to + size_t(b) * panel_bytes);
    }
  }
}

// Panel `index` of a part; lanes past its last row stay 0.
void pack_panel(const RawMatrix& raw, const PackedPart& part, int64_t index, std::byte* to) {
  const PanelSpec spec = panel_spec(raw.type);
  const int64_t num_blocks = raw.cols / spec.block_cols();
  const size_t row_bytes = size_t(num_blocks) * size_t(file_block_bytes(raw.type));
  const int64_t first = index * kPanelRows;
  const int num_rows = int(std::min(int64_t{kPanelRows}, part.rows - first));
  const std::byte* from = raw.raw + size_t(first) * row_bytes;
  std::memset(to, 0, part.panel_bytes);
  if (spec.is_float()) {
    pack_float_panel(spec.bits / 8, from, row_bytes, num_rows, raw.cols, to);
  } else {
    pack_quant_panel(raw.type, from, row_bytes, num_rows, num_blocks, to);
  }
}

// Panels of all parts, claimed one by one by `num_threads` threads, this one included.
void pack_all(std::span<const RawMatrix> raw, const std::vector<PackedPart>& parts,
              std::byte* memory, int num_threads) {
  int64_t num_panels = 0;
  for (const PackedPart& part : parts) num_panels += part.num_panels();
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t claimed = next++; claimed < num_panels; claimed = next++) {
      int64_t index = claimed;
      size_t p = 0;
      while (index >= parts[p].num_panels()) index -= parts[p++].num_panels();
      pack_panel(raw[p], parts[p], index,
                 memory + parts[p].offset + size_t(index) * parts[p].panel_bytes);
    }
  };
  std::vector<std::jthread> threads;
  const int64_t num_helpers = std::min<int64_t>(num_threads, num_panels) - 1;
  for (int64_t i = 0; i < num_helpers; ++i) threads.emplace_back(work);
  work();
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
    const PanelSpec spec = panel_spec(matrix.type);
    const size_t panel_bytes = size_t(cols / spec.block_cols()) * size_t(spec.block_bytes());
    parts.push_back({matrix.type, rows, matrix.rows, bytes, panel_bytes});
    bytes = align64(bytes + size_t(parts.back().num_panels()) * panel_bytes);
    rows += matrix.rows;
  }
  std::vector<float> bias_copy;
  if (bias != nullptr) bias_copy.assign(bias, bias + rows);
  PanelMemory memory = allocate(bytes);
  pack_all(raw, parts, memory.get(), num_threads);
  return std::make_unique<PackedMatrix>(std::move(parts), rows, cols, std::move(memory), bytes,
                                        std::move(bias_copy));
}

}  // namespace takt
