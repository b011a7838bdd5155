// A step as the pool sees it; the members' meaning is in pool/walk.h.
#pragma once
#include <cstddef>
#include <cstdint>

#include "pool/announcements.h"
#include "pool/step_control.h"

namespace takt {

class Step {
 public:
  virtual ~Step() = default;
  virtual int reuse_barrier(int instruction) const = 0;
  virtual bool writes_kv(int instruction) const = 0;
  virtual std::byte* place(int instruction) const = 0;
  virtual std::byte* stage(int thread, int instruction, int tile) = 0;
  virtual void unstage(int thread) = 0;
  virtual void run(int thread, int instruction, int tile, std::byte* where) = 0;
  virtual int64_t redo_after_ns(int instruction) const = 0;
  virtual void fetch_ahead(int thread, int instruction) = 0;
  virtual StepControl<RealSync>& control() = 0;
};

}  // namespace takt
