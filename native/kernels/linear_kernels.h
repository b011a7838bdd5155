// What each build of linear_isa.cc, and linear_amx.cc, offers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/isa.h"
#include "kernels/panel.h"

namespace takt {

// Rows of x that pass a panel before the next panel's turn: their int8 rows fit the second-level
// cache for K up to some thousands.
inline constexpr int kPassRows = 256;
// Rows that pass while a panel streams by, at most: their sums stay in registers.
inline constexpr int kMaxStreamRows = 12;

inline constexpr int kBlockPanels = 4;

// Where a thread reads on: to `end`, then from `next`.
struct ReadAhead {
  const std::byte* end;
  const std::byte* next;

  [[gnu::always_inline]] const std::byte* from(const std::byte* at) const { return at < end ? at : next + (at - end); }
};

// Product of one panel with rows of x, each the start of a q8 row (activation.h): tile[i * 16 + r] is
// row i of x times row r of the panel.
using StreamProduct = void (*)(const std::byte* panel, int64_t cols, const std::byte* const* rows,
                               const ReadAhead& ahead, float* tile);

// Rows of floats, `stride` floats apart.
struct Output {
  float* at;
  int64_t stride;
};

// Panels one after the other in memory, at most kBlockPanels.
struct PanelBlock {
  const std::byte* first;
  size_t panel_bytes;
  int num;
};

// Products of a block of panels with up to kPassRows q8 rows: tiles[(p * kPassRows + i) * 16 + r] is
// row i of x times row r of panel p.
using BlockProduct = void (*)(const PanelBlock& panels, int64_t cols, const std::byte* const* rows,
                              int num_rows, float* tiles);

// stream[type][m] is for m rows; null where a build has no kernel of that size, but never for its
// largest, max_stream_rows. All are null for float types (float_linear.h).
struct LinearKernels {
  int max_stream_rows;
  StreamProduct stream[kNumQuantTypes][kMaxStreamRows + 1];
  BlockProduct block[kNumQuantTypes];
};
TAKT_DECLARE_ISA_TABLE(LinearKernels, kLinearKernels)

}  // namespace takt
