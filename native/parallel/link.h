// What all connections between ranks of one host have in common.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "parallel/shared_wait.h"

namespace takt {

// Transfers over a link are numbered from 1; every rank makes the same ones in the same order.
class Link {
 public:
  Link(const std::atomic<uint32_t>* abort, int64_t spin_ns) : wait_(abort, spin_ns) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // The number of the next transfer; for the one thread that begins steps.
  uint64_t next_transfer() { return ++num_transfers_; }

  // True once a rank is gone: transfers since then have moved nothing.
  bool is_aborted() const { return wait_.is_aborted(); }

  // Bytes of the largest transfer.
  virtual size_t slot_bytes() const = 0;

 protected:
  const SharedWait wait_;

 private:
  uint64_t num_transfers_ = 0;
};

}  // namespace takt
