// One operator's part of a program: something computed in tiles, each a pure function of the step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "program/scratch.h"
#include "program/value.h"

namespace takt {

class Link;
class StepContext;
struct ProgramPlan;

// One tile to be computed. `where` is StepContext::arena() for a result that goes to its own place;
// otherwise private staging of `staged_bytes()` bytes.
struct TileRun {
  const StepContext& step;
  int instruction;
  int tile;
  std::byte* where;
  Scratch scratch;
};

// Up to two pieces of memory.
struct WeightMemory {
  std::span<const std::byte> pieces[2];
};

class Instruction {
 public:
  virtual ~Instruction() = default;

  // The cut of this step's work into tiles; depends on the batch's shape, never on its values.
  virtual TileGrid grid(const StepContext& step) const = 0;
  // The most tiles that any step can have.
  virtual int32_t max_tiles() const = 0;
  // Computes a tile. Never allocates, never throws, and may be called twice for the same tile by
  // two threads at once: it writes to `where` (and idempotently to the K/V cache) alone.
  virtual void run(TileRun tile) const noexcept = 0;
  // Scratch that `run` takes, at most.
  virtual size_t scratch_bytes() const { return 0; }
  // Bytes of a staged tile's result, for a step that is cut by `grid`.
  virtual size_t staged_bytes(const ProgramPlan& plan, const TileGrid& grid) const = 0;
  // Multiply-adds, or operations of like cost, of a whole tile: sets how long it may take.
  virtual int64_t tile_work(const StepContext& step, const TileGrid& grid) const = 0;
  virtual bool writes_kv() const { return false; }
  // Whether a tile that takes long may be computed again by another thread.
  virtual bool may_redo() const { return true; }
  // The link whose next transfer this instruction makes, in each step in which it has tiles.
  virtual Link* link() const { return nullptr; }
  virtual bool reads_weights() const { return false; }
  // Weights that tile number `tile` of `grid` reads, in this order; empty where it reads none.
  virtual WeightMemory weights(const TileGrid&, int) const { return {}; }
  // An earlier instruction that every thread must have left before this one begins, though they
  // share no place; -1: none.
  virtual int order_after() const { return -1; }

  std::vector<int> outputs;  // values
};

}  // namespace takt
