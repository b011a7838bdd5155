#include "parallel/compressed_sum.h"

namespace takt {

CompressedRow CompressedSum::row(int rank) const {
  return {group_.payload(), group_.slot(rank, n_) + at_, width_};
}

CompressedRow CompressedSum::sums(int rank) const {
  return {group_.payload(), group_.slot(rank, n_) + at_ + 2 * size_t(width_), width_};
}

int64_t CompressedSum::first_column(int rank) const {
  return width_ / kPayloadGroup * rank / group_.num_ranks() * kPayloadGroup;
}

void CompressedSum::write(const float* x) const { row(group_.rank()).write(x, 0, width_); }

void CompressedSum::sum_share(float* scratch) const {
  const int64_t col0 = first_column(group_.rank()), col1 = first_column(group_.rank() + 1);
  if (col0 == col1) return;  // more ranks than groups of columns
  row(0).read(col0, col1, scratch);
  for (int r = 1; r < group_.num_ranks(); ++r) row(r).add(col0, col1, scratch);
  sums(group_.rank()).write(scratch, col0, col1);
}

void CompressedSum::read(float* out) const {
  for (int r = 0; r < group_.num_ranks(); ++r) {
    const int64_t col0 = first_column(r);
    sums(r).read(col0, first_column(r + 1), out + col0);
  }
}

}  // namespace takt
