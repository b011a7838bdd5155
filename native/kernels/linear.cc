#include "kernels/linear.h"

#include <algorithm>

#include "kernels/float_linear.h"
#include "kernels/linear_kernels.h"
#include "kernels/packed_matrix.h"
#include "kernels/tile_kernels.h"
#include "kernels/widened_product.h"

namespace takt {
namespace {

// A panel's rows [first, last) of one tile to the output, bias added.
void write_tile(const float* tile, int num_rows, int first, int last, const float* bias,
                const Output& out) {
  for (int i = 0; i < num_rows; ++i) {
    float* to = out.at + i * out.stride;
    const float* from = tile + kPanelRows * i + first;
    if (bias == nullptr && last - first == kPanelRows) {
      std::copy_n(from, kPanelRows, to);
    } else if (bias == nullptr) {
      std::copy(from, from + (last - first), to);
    } else {
      for (int r = 0; r < last - first; ++r) to[r] = from[r] + bias[r];
    }
  }
}

// Rows of x that pass together, in the form that they are multiplied in.
struct PassRows {
  const std::byte* rows[kPassRows];
  int num;
  size_t stride = 0;  // bytes from each to the next; 0: they are not equally far apart
  bool is_widened;    // bf16 rows, with quantised weights

  // Rows [begin, end): of a quantised type's either all below x.num_q8, or none.
  PassRows(const ActivationRows& x, QuantType type, int begin, int end)
      : num(end - begin), is_widened(!panel_spec(type).is_float() && begin >= x.num_q8) {
    for (int i = 0; i < num; ++i) rows[i] = row(x, type, begin + i);
    if (num > 1) stride = size_t(rows[1] - rows[0]);
    for (int i = 2; i < num; ++i) {
      if (size_t(rows[i] - rows[i - 1]) != stride) stride = 0;
    }
  }

 private:
  const std::byte* row(const ActivationRows& x, QuantType type, int i) const {
    if (is_widened || type == QuantType::kBF16) {
      return reinterpret_cast<const std::byte*>(x.bf16[i]);
    }
    if (panel_spec(type).is_float()) return reinterpret_cast<const std::byte*>(x.f32[i]);
    return reinterpret_cast<const std::byte*>(x.q8[i].q);
  }
};

// A few rows times one panel.
void stream_panel(const LinearKernels& kernels, QuantType type, const std::byte* panel,
                  int64_t cols, const PassRows& pass, const ReadAhead& ahead, float* tile) {
  const StreamProduct* stream = kernels.stream[int(type)];
  for (int i = 0; i < pass.num; i += kernels.max_stream_rows) {
    const int used = std::min(pass.num - i, kernels.max_stream_rows);
    const std::byte* filled[kMaxStreamRows];
    for (int j = 0; j < kMaxStreamRows; ++j) filled[j] = pass.rows[i + std::min(j, used - 1)];
    int size = used;
    while (stream[size] == nullptr) ++size;  // filled up with a repeated row
    alignas(64) float sums[kMaxStreamRows * kPanelRows];
    stream[size](panel, cols, filled, ahead, sums);
    std::copy_n(sums, used * kPanelRows, tile + i * kPanelRows);
  }
}

// The matrix unit's product of these rows, or null.
TileProduct tile_product([[maybe_unused]] QuantType type, [[maybe_unused]] const PassRows& pass,
                         [[maybe_unused]] int max_stream_rows) {
#if defined(TAKT_X86_ISAS)
  const bool is_spaced = pass.num == 1 || pass.stride != 0;
  if (!selected_isa_has_tiles() || panel_spec(type).is_float() || !is_spaced) return nullptr;
  if (pass.is_widened) return amx::kWidenedKernels.product[int(type)];
  if (pass.num > max_stream_rows) return amx::kTileKernels.product[int(type)];
#endif
  return nullptr;
}

// The rows times a block of panels, into `tiles`, or into `out` if that has a place: which is told.
bool multiply_panels(QuantType type, const PanelBlock& panels, int64_t cols, const PassRows& pass,
                     const ReadAhead& ahead, float* tiles, const Output& out) {
  static constexpr const LinearKernels* kTables[] = TAKT_ISA_TABLES(kLinearKernels);
  const LinearKernels& kernels = *kTables[isa_index()];
  if (const TileProduct product = tile_product(type, pass, kernels.max_stream_rows)) {
    product(panels, cols, pass.rows[0], pass.stride, pass.num, tiles, out);
    return out.at != nullptr;
  }
  const bool is_float = panel_spec(type).is_float();
  if (!is_float && !pass.is_widened && pass.num > kernels.max_stream_rows) {
    kernels.block[int(type)](panels, cols, pass.rows, pass.num, tiles);
    return false;
  }
  for (int p = 0; p < panels.num; ++p) {
    const std::byte* panel = panels.first + size_t(p) * panels.panel_bytes;
    float* tile = tiles + p * kPassRows * kPanelRows;
    if (is_float) {
      multiply_float_panel(type, panel, cols, pass.rows, pass.num, tile);
    } else if (pass.is_widened) {
      multiply_widened_panel(type, panel, cols, pass.rows, pass.num, tile);
    } else {
      stream_panel(kernels, type, panel, cols, pass, ahead, tile);
    }
  }
  return false;
}

// Rows [begin, end) of x times one part's rows [first, last).
void multiply_part(const PackedMatrix& w, const PackedPart& part, int64_t first, int64_t last,
                   const ActivationRows& x, int begin, int end, const ReadAhead& ahead,
                   Output out) {
  const PassRows pass(x, part.type, begin, end);
  const int64_t end_panel = (last + kPanelRows - 1) / kPanelRows;
  alignas(64) float tiles[kBlockPanels * kPassRows * kPanelRows];

  for (int64_t panel = first / kPanelRows; panel < end_panel; panel += kBlockPanels) {
    const int num_panels = int(std::min<int64_t>(kBlockPanels, end_panel - panel));
    const bool is_whole = w.bias() == nullptr && panel * kPanelRows >= first &&
                          (panel + num_panels) * kPanelRows <= last;
    float* const place = out.at + begin * out.stride + (panel * kPanelRows - first);
    if (multiply_panels(part.type, {w.panel(part, panel), part.panel_bytes, num_panels}, w.cols(),
                        pass, ahead, tiles, {is_whole ? place : nullptr, out.stride})) {
      continue;
    }
    for (int p = 0; p < num_panels; ++p) {
      const int64_t panel_first = (panel + p) * kPanelRows;
      const int lane_first = int(std::max(first - panel_first, int64_t{0}));
      const int lane_last = int(std::min(last - panel_first, int64_t{kPanelRows}));
      const int64_t row = panel_first + lane_first;
      const float* bias = w.bias() == nullptr ? nullptr : w.bias() + part.first_row + row;
      write_tile(tiles + p * kPassRows * kPanelRows, pass.num, lane_first, lane_last, bias,
                 {out.at + begin * out.stride + (row - first), out.stride});
    }
  }
}

}  // namespace

void linear(const PackedWeight& weight, int64_t n0, int64_t n1, const ActivationRows& x, float* out,
            int64_t out_stride, const std::byte* next) {
  const auto& w = static_cast<const PackedMatrix&>(weight);
  const std::span<const std::byte> memory = w.memory_of_rows(n0, n1);
  const std::byte* end_of_memory = memory.data() + memory.size();
  const ReadAhead ahead = {end_of_memory, next == nullptr ? end_of_memory : next};
  for (int begin = 0, end; begin < x.m; begin = end) {
    end = std::min(begin + kPassRows, begin < x.num_q8 ? x.num_q8 : x.m);
    for (const PackedPart& part : w.parts()) {
      const int64_t first = std::max(n0 - part.first_row, int64_t{0});
      const int64_t last = std::min(n1 - part.first_row, part.rows);
      if (first >= last) continue;
      multiply_part(w, part, first, last, x, begin, end, ahead,
                    {out + (part.first_row + first - n0), out_stride});
    }
  }
}

}  // namespace takt
