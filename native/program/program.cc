#include "program/program.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "parallel/link.h"
#include "pool/futex.h"
#include "program/logits.h"

namespace takt {

Program::Program(std::shared_ptr<Pool> pool, std::unique_ptr<ProgramPlan> plan,
                 const FieldOffset& output_offset)
    : pool_(std::move(pool)),
      plan_(std::move(plan)),
      header_(output_offset("header")),
      token_ids_(output_offset("token_ids")),
      logprobs_(output_offset("logprobs")),
      ranks_(output_offset("ranks")),
      top_token_ids_(output_offset("top_token_ids")),
      top_logprobs_(output_offset("top_logprobs")) {
  for (auto& context : contexts_) context = std::make_unique<StepContext>(*plan_);
}

Program::~Program() {
  if (use_) pool_->join(*current_, 0);
  for (const auto& context : contexts_) {
    // An aborted pool's threads leave too, within one tile.
    while (!pool_->is_free(context->control().epoch())) spin_pause();
  }
}

void Program::run(const std::byte* step_input, std::byte* step_output) {
  const Pool::Use use(*pool_);
  begin_step(step_input);
  execute_range(0, num_instructions());
  end_step(step_output);
}

void Program::start(const std::byte* step_input) {
  if (use_) pool_->join(*current_, 0);  // nobody joins that step any more when this returns
  use_.emplace(*pool_);
  try {
    begin_step(step_input);
  } catch (...) {
    use_.reset();
    throw;
  }
  pool_->open(*current_, 0, num_instructions());
}

void Program::finish(std::byte* step_output) {
  if (!use_) throw std::invalid_argument("no step of this program was started");
  const bool done = pool_->join(*current_, 0);
  use_.reset();
  if (!done) {
    current_ = nullptr;
    throw std::runtime_error("the thread pool was aborted");
  }
  check_links();
  end_step(step_output);
}

void Program::begin(const std::byte* step_input) {
  const Pool::Use use(*pool_);
  begin_step(step_input);
}

void Program::execute(int first, int end) {
  const Pool::Use use(*pool_);
  if (first < 0 || end > num_instructions()) {
    throw std::invalid_argument("no such instructions in this program");
  }
  execute_range(first, end);
}

void Program::end(std::byte* step_output) {
  const Pool::Use use(*pool_);
  end_step(step_output);
}

void Program::set_profiling(bool is_on) {
  const Pool::Use use(*pool_);
  current_ = nullptr;
  for (const auto& context : contexts_) {
    // Threads that fell behind in a step of before hold on to what they were given.
    if (!pool_->wait_until_free(context->control().epoch())) {
      throw std::runtime_error("the thread pool was aborted");
    }
  }
  profile_ = is_on ? std::make_unique<StepProfile>(num_threads(), num_instructions()) : nullptr;
  for (const auto& context : contexts_) context->set_profile(profile_.get());
}

// A context that no thread is in. Nearly always the first, whose memory is in the caches; others
// serve while a thread that lost its core is still inside.
StepContext* Program::free_context() {
  StepContext* oldest = contexts_[0].get();
  for (const auto& context : contexts_) {
    if (pool_->is_free(context->control().epoch())) return context.get();
    if (context->control().epoch() < oldest->control().epoch()) oldest = context.get();
  }
  return pool_->wait_until_free(oldest->control().epoch()) ? oldest : nullptr;
}

void Program::begin_step(const std::byte* step_input) {
  current_ = nullptr;
  start_ns_ = now_ns();
  pool_->stolen_time().begin(start_ns_);
  StepContext* context = pool_->is_aborted() ? nullptr : free_context();
  if (context == nullptr) throw std::runtime_error("the thread pool was aborted");
  context->begin(pool_->next_epoch(), step_input);
  current_ = context;
  if (profile_ != nullptr) {
    profile_->clear();
    profile_->stamps = {start_ns_, now_ns()};
  }
}

void Program::execute_range(int first, int end) {
  if (current_ == nullptr) throw std::invalid_argument("no step of this program was begun");
  if (first >= end) return;
  if (!pool_->run(*current_, first, end)) {
    current_ = nullptr;
    throw std::runtime_error("the thread pool was aborted");
  }
  check_links();
}

void Program::check_links() {
  for (const Link* link : plan_->links) {
    if (!link->is_aborted()) continue;
    current_ = nullptr;
    throw std::runtime_error("another rank is gone");
  }
}

void Program::end_step(std::byte* step_output) {
  if (current_ == nullptr) throw std::invalid_argument("no step of this program was begun");
  if (profile_ != nullptr) profile_->stamps[StepProfile::kRunEnd] = now_ns();
  write_rows(step_output);
  const int64_t end_ns = now_ns();
  StolenTime& stolen = pool_->stolen_time();
  stolen.end(end_ns);
  const int64_t header[8] = {current_->input().step_id(),
                             start_ns_,
                             end_ns,
                             current_->input().num_rows(),
                             current_->control().num_redone(),
                             stolen.in_run_ns(),
                             stolen.between_runs_ns(),
                             // Ranks wait for each other inside instructions.
                             plan_->links.empty() ? stolen.computed_ns() : 0};
  std::memcpy(step_output + header_, header, sizeof header);
  if (profile_ != nullptr) {
    profile_->stamps[StepProfile::kEnd] = header[2];
    // Rows of threads that fell behind are complete once they have left.
    pool_->wait_until_free(current_->control().epoch());
  }
  current_ = nullptr;
}

void Program::write_rows(std::byte* step_output) const {
  const int64_t max_top = plan_->limits.max_logprobs;
  const size_t top_stride = size_t(std::max<int64_t>(max_top, 1)) * 4;
  for (const int instruction : plan_->samples) {
    const auto& sample =
        static_cast<const Sample&>(*plan_->instructions[size_t(instruction)]);
    for (int i = 0; i < sample.block().num_rows(*current_); ++i) {
      std::byte* from = sample.result(*current_, instruction, i);
      const auto* sampled = reinterpret_cast<const SampledRow*>(from);
      const size_t row = size_t(sample.block().first + i);
      std::memcpy(step_output + token_ids_ + row * 4, &sampled->token, 4);
      std::memcpy(step_output + logprobs_ + row * 4, &sampled->logprob, 4);
      std::memcpy(step_output + ranks_ + row * 4, &sampled->rank, 4);
      const int num_top = current_->input().row_num_logprobs()[row];
      if (num_top <= 0) continue;
      std::memcpy(step_output + top_token_ids_ + row * top_stride, SampledRow::top_tokens(from),
                  size_t(num_top) * 4);
      std::memcpy(step_output + top_logprobs_ + row * top_stride,
                  SampledRow::top_logprobs(from, plan_->limits), size_t(num_top) * 4);
    }
  }
}

}  // namespace takt
