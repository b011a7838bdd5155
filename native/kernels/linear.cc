#include "kernels/linear.h"

#include <algorithm>

#include "kernels/float_linear.h"
#include "kernels/linear_kernels.h"
#include "kernels/packed_matrix.h"
#include "kernels/tile_kernels.h"

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

// Rows of x that pass together, in the form that a type takes.
struct PassRows {
  const std::byte* rows[kPassRows];
  int num;
  size_t stride;  // bytes from each to the next; 0: they are not equally far apart

  PassRows(const ActivationRows& x, QuantType type, int begin, int end) : num(end - begin) {
    for (int i = 0; i < num; ++i) rows[i] = row(x, type, begin + i);
    stride = num > 1 ? size_t(rows[1] - rows[0]) : 0;
    for (int i = 2; i < num; ++i) {
      if (size_t(rows[i] - rows[i - 1]) != stride) stride = 0;
    }
  }

 private:
  static const std::byte* row(const ActivationRows& x, QuantType type, int i) {
    if (type == QuantType::kBF16) return reinterpret_cast<const std::byte*>(x.bf16[i]);
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

// The rows times a block of panels, into `tiles`, or into `out` if that has a place: which is told.
bool multiply_panels(QuantType type, const PanelBlock& panels, int64_t cols, const PassRows& pass,
                     const ReadAhead& ahead, float* tiles,
                     [[maybe_unused]] const Output& out) {
  static constexpr const LinearKernels* kTables[] = TAKT_ISA_TABLES(kLinearKernels);
  const LinearKernels& kernels = *kTables[isa_index()];
  if (pass.num <= kernels.max_stream_rows || panel_spec(type).is_float()) {
    for (int p = 0; p < panels.num; ++p) {
      const std::byte* panel = panels.first + size_t(p) * panels.panel_bytes;
      float* tile = tiles + p * kPassRows * kPanelRows;
      if (panel_spec(type).is_float()) {
        multiply_float_panel(type, panel, cols, pass.rows, pass.num, tile);
      } else {
        stream_panel(kernels, type, panel, cols, pass, ahead, tile);
      }
    }
    return false;
  }
#if defined(TAKT_X86_ISAS)
  if (pass.stride != 0 && selected_isa_has_tiles()) {
    amx::kTileKernels.product[int(type)](panels, cols, pass.rows[0], pass.stride, pass.num, tiles,
                                         out);
    return out.at != nullptr;
  }
#endif
  kernels.block[int(type)](panels, cols, pass.rows, pass.num, tiles);
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
  for (int begin = 0; begin < x.m; begin += kPassRows) {
    const int end = std::min(begin + kPassRows, x.m);
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
