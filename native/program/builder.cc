#include "program/builder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "program/arena_plan.h"
#include "program/block_copy.h"
#include "program/embed.h"
#include "program/product.h"
#include "program/rope_cache.h"

namespace takt {
namespace {

// Steps of at most so many tokens and rows have room for several layers' places.
constexpr int64_t kFewRowsAtMost = 32;
// Instructions between the last use of a place and its next: three layers' worth, or hardly any.
constexpr int kReuseDistance[kNumLayouts] = {27, 1};
// Rows of logits held at a time. Two blocks exist at once: one is sampled while threads that are
// done begin the next.
constexpr int64_t kLogitsBlockBytes = int64_t{16} << 20;
// Last use of what the caller reads after the step.
constexpr int kReadByCaller = 1 << 30;

[[noreturn]] void refuse(const std::string& why) { throw std::invalid_argument(why); }

constexpr int kBlockCopyInstruction = 0;

}  // namespace

int32_t logits_block_rows(const StepLimits& limits, int64_t vocab_size) {
  const int64_t row_bytes = vocab_size * int64_t(sizeof(float));
  const int64_t most_rows = std::max<int64_t>(limits.max_num_rows, 1);
  return int32_t(std::clamp<int64_t>(kLogitsBlockBytes / row_bytes, 1, most_rows));
}

ProgramBuilder::ProgramBuilder(const StepLimits& limits, int64_t max_position, int num_threads,
                               std::shared_ptr<const KVPool> kv, Int8Tokens int8_tokens)
    : limits_(limits),
      num_threads_(num_threads),
      few_rows_(std::min(kFewRowsAtMost, std::max(limits.max_num_tokens, limits.max_num_rows))),
      kv_(std::move(kv)),
      plan_(std::make_unique<ProgramPlan>()) {
  if (limits.max_num_tokens < 1 || limits.max_num_seqs < 1 || limits.max_num_rows < 0) {
    refuse("a program needs room for one token and one sequence at least");
  }
  if (kv_ != nullptr && kv_->num_groups() > limits.num_kv_groups) {
    refuse("the KV cache has " + std::to_string(kv_->num_groups()) + " groups, the step " +
           std::to_string(limits.num_kv_groups));
  }
  plan_->limits = limits;
  plan_->bounds = {0, max_position, kv_.get()};
  plan_->num_threads = num_threads;
  plan_->max_few_rows = int(few_rows_);
  plan_->int8_tokens = int8_tokens;
  if (kv_ != nullptr) add(std::make_unique<BlockCopy>(kv_));
}

int ProgramBuilder::embed(SharedWeight table, float scale, int64_t first_token,
                          int64_t vocab_size) {
  plan_->bounds.vocab_size = vocab_size > 0 ? vocab_size : table->rows();
  const int output = new_token_value(table->cols());
  add(std::make_unique<Embed>(limits_, num_threads_, std::move(table), scale,
                              int32_t(first_token), output));
  return output;
}

std::pair<int, int> ProgramBuilder::norm(int x, SharedVector weight, float eps, int residual,
                                         SharedVector post_weight) {
  const int64_t width = int64_t(weight->size());
  check_width(x, width, "a norm's input");
  if (residual != kNoValue) check_width(residual, width, "a norm's residual");
  if (post_weight != nullptr && int64_t(post_weight->size()) != width) {
    refuse("a norm's two weights differ in width");
  }
  read(x);
  if (residual != kNoValue) read(residual);
  const int normed = new_token_value(width);
  const bool sum_is_x = residual == kNoValue && post_weight == nullptr;
  const int sum = sum_is_x ? kNoValue : new_token_value(width);
  add(std::make_unique<Norm>(limits_, num_threads_,
                             Norm::Operands{x, residual, std::move(weight),
                                            std::move(post_weight), eps, width},
                             normed, sum));
  return {normed, sum_is_x ? x : sum};
}

int ProgramBuilder::linear(int x, SharedWeight weight) {
  read_for_product(x, weight);
  const int output = new_token_value(weight->rows());
  add(std::make_unique<Linear>(limits_, num_threads_, x, std::move(weight), output));
  return output;
}

int ProgramBuilder::rope_cache(RopeCache::Operands operands) {
  require_kv();
  const int64_t head_dim = kv_->head_dim(), kv_heads = kv_->num_kv_heads();
  if (operands.num_heads < 1 || operands.num_heads % kv_heads != 0) {
    refuse(std::to_string(operands.num_heads) + " query heads do not share " +
           std::to_string(kv_heads) + " KV heads evenly");
  }
  if (operands.layer < 0 || operands.layer >= kv_->num_layers()) {
    refuse("layer " + std::to_string(operands.layer) + " has no KV cache");
  }
  for (const SharedVector& norm : {operands.q_norm, operands.k_norm}) {
    if (norm != nullptr && int64_t(norm->size()) != head_dim) {
      refuse("a head norm's weight has not the head's width");
    }
  }
  const size_t table = size_t(plan_->bounds.max_position * (head_dim / 2));
  if (operands.cos->size() != table || operands.sin->size() != table) {
    refuse("the tables of the rotary embedding do not cover max_position");
  }
  check_width(operands.qkv, (operands.num_heads + 2 * kv_heads) * head_dim, "qkv");
  read(operands.qkv);
  const int output = new_token_value(operands.num_heads * head_dim);
  add(std::make_unique<RopeCache>(limits_, num_threads_, std::move(operands), kv_,
                                  kBlockCopyInstruction, output));
  return output;
}

int ProgramBuilder::attention(int q, const AttentionOptions& options) {
  require_kv();
  if (options.layer < 0 || options.layer >= kv_->num_layers()) {
    refuse("layer " + std::to_string(options.layer) + " has no KV cache");
  }
  const AttentionShape shape{kv_->group_of(options.layer), options.window, options.num_heads,
                             kv_->num_kv_heads(), kv_->head_dim()};
  const int64_t width = shape.num_heads * shape.head_dim;
  check_width(q, width, "attention's queries");
  read(q);
  const AttentionOperands operands{q, options.layer, options.scale, options.softcap,
                                   shape_index(shape), shape};
  const size_t row_bytes = size_t(width) * sizeof(float);
  const int rows = new_place(size_t(few_rows_) * row_bytes,
                             size_t(limits_.max_num_tokens) * row_bytes);
  const size_t partials_bytes = size_t(AttentionWork::kMaxPartialRows * shape.num_heads) *
                                partial_floats(shape.head_dim) * sizeof(float);
  const int partials = new_place(partials_bytes, partials_bytes);
  const int splits_instruction = num_instructions();
  auto splits = std::make_unique<AttentionSplits>(limits_, operands, kv_, rows, partials);
  const AttentionSplits* splits_view = splits.get();
  add(std::move(splits));
  plan_->places[size_t(rows)].last = plan_->places[size_t(partials)].last = num_instructions();
  const int output = new_token_value(width);
  add(std::make_unique<AttentionCombine>(limits_, num_threads_, operands, splits_view,
                                         splits_instruction, output));
  return output;
}

int ProgramBuilder::gated_mlp(int x, SharedWeight gate_up, SharedWeight down, Gate kind) {
  const int64_t width = gate_up->rows() / 2;
  if (gate_up->rows() % 2 != 0 || width % kHalfGroup != 0) {
    refuse("gate and up have " + std::to_string(gate_up->rows()) +
           " rows together; each must have a multiple of 16");
  }
  read_for_product(x, gate_up);
  const int gated = new_token_value(width);
  add(std::make_unique<GatedLinear>(limits_, num_threads_, x, std::move(gate_up), kind, gated));
  return linear(gated, std::move(down));
}

int ProgramBuilder::logits(int x, SharedWeight head, float softcap) {
  check_width(x, head->cols(), "the head's input");
  pending_logits_.push_back({x, std::move(head), softcap, nullptr, {}});
  return int(pending_logits_.size()) - 1;
}

void ProgramBuilder::sample(int logits) {
  if (logits < 0 || size_t(logits) >= pending_logits_.size()) refuse("no such logits");
  const PendingLogits& from = pending_logits_[size_t(logits)];
  int64_t& bound = plan_->bounds.vocab_size;
  bound = bound == 0 ? from.vocab_size() : std::min(bound, from.vocab_size());
  const int32_t block_rows = logits_block_rows(limits_, from.vocab_size());
  for (int32_t first = 0; first < limits_.max_num_rows; first += block_rows) {
    sample_block(from, {first, std::min(block_rows, int32_t(limits_.max_num_rows) - first)});
  }
}

void ProgramBuilder::sample_block(const PendingLogits& from, LogitsBlock block) {
  const int64_t few = std::clamp<int64_t>(few_rows_ - block.first, 0, block.max_rows);
  read_for_product(from.x, from.head);
  int output = new_value(from.head->rows(), few, block.max_rows);
  add(std::make_unique<Logits>(num_threads_, block, from.x, from.head, from.softcap, output));
  if (from.group != nullptr) {
    check_slot(from.group->slot_bytes(), block.max_rows, from.head->rows());
    read(output);
    const bool is_first = from.group->rank() == 0;
    const int whole = is_first ? new_value(from.vocab_size(), few, block.max_rows) : kNoValue;
    add(std::make_unique<GatherLogits>(from.group, block, output, from.borders, whole));
    if (!is_first) return;
    output = whole;
  }
  read(output);
  const int place = new_place(size_t(few) * SampledRow::bytes(limits_),
                              size_t(block.max_rows) * SampledRow::bytes(limits_));
  plan_->places[size_t(place)].last = kReadByCaller;
  plan_->samples.push_back(num_instructions());
  add(std::make_unique<Sample>(limits_, block, output, from.vocab_size(),
                               from.group != nullptr, place));
}

int ProgramBuilder::all_reduce(int x, SharedCommunicator group) {
  const int64_t width = value(x, "a sum's input").width;
  check_slot(group->slot_bytes(), limits_.max_num_tokens, width);
  if (group->payload() != Payload::kF32 && width % kPayloadGroup != 0) {
    refuse("compressed sums must have a multiple of 32 columns, not " + std::to_string(width));
  }
  read(x);
  const int output = new_token_value(width);
  add(std::make_unique<AllReduce>(limits_, std::move(group), x, width, output));
  return output;
}

int ProgramBuilder::gather(int logits, SharedCommunicator group, std::vector<int64_t> borders) {
  if (logits < 0 || size_t(logits) >= pending_logits_.size()) refuse("no such logits");
  PendingLogits& from = pending_logits_[size_t(logits)];
  const auto rank = size_t(group->rank());
  if (borders.size() != size_t(group->num_ranks()) + 1 ||
      borders[rank + 1] - borders[rank] != from.head->rows()) {
    refuse("the head has not this rank's columns of the vocabulary");
  }
  from.group = std::move(group);
  from.borders = std::move(borders);
  return logits;
}

void ProgramBuilder::send(int x, SharedChannel channel) {
  const int64_t width = value(x, "what is sent").width;
  check_slot(channel->slot_bytes(), limits_.max_num_tokens, width);
  read(x);
  add(std::make_unique<Send>(std::move(channel), x, width));
}

int ProgramBuilder::receive(int64_t width, SharedChannel channel) {
  check_slot(channel->slot_bytes(), limits_.max_num_tokens, width);
  const int output = new_token_value(width);
  add(std::make_unique<Receive>(limits_, std::move(channel), width, output));
  return output;
}

void ProgramBuilder::check_slot(size_t slot_bytes, int64_t rows, int64_t width) const {
  const size_t needed = size_t(rows * width) * sizeof(float);
  if (needed > slot_bytes) {
    refuse("a transfer of " + std::to_string(needed) + " bytes does not fit a slot of " +
           std::to_string(slot_bytes));
  }
}

int ProgramBuilder::new_value(int64_t width, int64_t max_rows_few, int64_t max_rows_many) {
  Value v{};
  v.width = width;
  v.max_rows[kFewRows] = max_rows_few;
  v.max_rows[kManyRows] = max_rows_many;
  v.producer = v.last_use = num_instructions();
  plan_->values.push_back(v);
  return int(plan_->values.size()) - 1;
}

int ProgramBuilder::new_token_value(int64_t width) {
  return new_value(width, few_rows_, limits_.max_num_tokens);
}

int ProgramBuilder::new_place(size_t bytes_few, size_t bytes_many) {
  plan_->places.push_back(
      {{bytes_few, bytes_many}, {0, 0}, num_instructions(), num_instructions()});
  return int(plan_->places.size()) - 1;
}

void ProgramBuilder::read(int number) {
  value(number, "an input");
  Value& v = plan_->values[size_t(number)];
  v.needs_f32 = true;
  v.last_use = num_instructions();
}

void ProgramBuilder::read_for_product(int x, const SharedWeight& weight) {
  check_width(x, weight->cols(), "a product's input");
  if (weight->is_quantised() && weight->cols() % kGroup != 0) {
    refuse("a quantised weight's inputs must be a multiple of 32, not " +
           std::to_string(weight->cols()));
  }
  Value& v = plan_->values[size_t(x)];
  v.needs_f32 |= weight->needs_f32();
  v.needs_quantised |= weight->is_quantised();
  v.needs_bf16 |= weight->needs_bf16();
  v.last_use = num_instructions();
}

const Value& ProgramBuilder::value(int number, const char* what) const {
  if (number < 0 || size_t(number) >= plan_->values.size()) {
    refuse(std::string(what) + " is no value of this program");
  }
  return plan_->values[size_t(number)];
}

void ProgramBuilder::check_width(int number, int64_t width, const char* what) const {
  if (const Value& v = value(number, what); v.width != width) {
    refuse(std::string(what) + " has width " + std::to_string(v.width) + ", not " +
           std::to_string(width));
  }
}

void ProgramBuilder::require_kv() const {
  if (kv_ == nullptr) refuse("attention needs a KV cache, which was not allocated");
}

int ProgramBuilder::shape_index(const AttentionShape& shape) {
  auto& shapes = plan_->attention_shapes;
  const auto known = std::find(shapes.begin(), shapes.end(), shape);
  if (known != shapes.end()) return int(known - shapes.begin());
  shapes.push_back(shape);
  return int(shapes.size()) - 1;
}

void ProgramBuilder::add(std::unique_ptr<Instruction> instruction) {
  plan_->instructions.push_back(std::move(instruction));
}

void ProgramBuilder::place_values() {
  for (Value& v : plan_->values) {
    const auto place = [&](size_t row_bytes) {
      plan_->places.push_back({{size_t(v.max_rows[kFewRows]) * row_bytes,
                                size_t(v.max_rows[kManyRows]) * row_bytes},
                               {0, 0},
                               v.producer,
                               v.last_use});
      return int(plan_->places.size()) - 1;
    };
    if (v.needs_f32) v.f32_place = place(size_t(v.width) * sizeof(float));
    const Int8Tokens int8 = plan_->int8_tokens;
    if (v.needs_quantised && int8 != Int8Tokens::kNone) v.q8_place = place(q8_row_bytes(v.width));
    if (v.needs_bf16 || (v.needs_quantised && int8 != Int8Tokens::kAll)) {
      v.bf16_place = place(size_t(bf16_row_elements(v.width)) * sizeof(uint16_t));
    }
  }
}

namespace {

std::vector<int> next_readers(const std::vector<std::unique_ptr<Instruction>>& instructions) {
  const int count = int(instructions.size());
  std::vector<int> readers(instructions.size());
  int next = -1;
  // Twice round, since after the last one comes the next step's first.
  for (int turn = 2 * count - 1; turn >= 0; --turn) {
    const int i = turn % count;
    readers[size_t(i)] = next;
    if (instructions[size_t(i)]->reads_weights()) next = i;
  }
  return readers;
}

}  // namespace

std::unique_ptr<ProgramPlan> ProgramBuilder::finish(FieldOffset input_offset) {
  if (num_instructions() == 0) refuse("the program is empty");
  ProgramPlan& plan = *plan_;
  plan.input_offset = std::move(input_offset);
  place_values();
  plan.arena_bytes = 0;
  for (const ArenaLayout layout : {kFewRows, kManyRows}) {
    plan.arena_bytes = std::max(plan.arena_bytes,
                                plan_arena(plan.places, layout, kReuseDistance[layout]));
    plan.reuse_barriers[layout] = reuse_barriers(plan.places, layout, num_instructions());
    for (int i = 0; i < num_instructions(); ++i) {
      int& barrier = plan.reuse_barriers[layout][size_t(i)];
      barrier = std::max(barrier, plan.instructions[size_t(i)]->order_after());
    }
  }
  plan.scratch_bytes = 64;
  for (const auto& instruction : plan.instructions) {
    plan.max_tiles.push_back(instruction->max_tiles());
    plan.scratch_bytes = std::max(plan.scratch_bytes, align64(instruction->scratch_bytes()));
    Link* link = instruction->link();
    const bool is_new = std::find(plan.links.begin(), plan.links.end(), link) == plan.links.end();
    if (link != nullptr && is_new) plan.links.push_back(link);
  }
  for (int t = 0; t < num_threads_; ++t) plan.scratch.emplace_back(plan.scratch_bytes);
  plan.next_readers = next_readers(plan.instructions);
  plan.kv = kv_;
  return std::move(plan_);
}

}  // namespace takt
