// What each thread says it may still touch.
//
// A thread writes its word before it looks at anything of an instruction, and every other thread
// reads the words before it overwrites something: whoever was seen to have left cannot touch it.
// All operations on the words, and those on results, are sequentially consistent. A redo stores its
// word, then reads that a result is absent; whoever overwrites has read that the result is present,
// then reads the word. As all four have one order, the second thread sees the first one's word.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

namespace takt {

// How shared words are kept; the model checker puts words of its own here.
struct RealSync {
  template <class T>
  using Atomic = std::atomic<T>;
};

template <class Sync>
class Announcements {
 public:
  explicit Announcements(int num_threads)
      : num_threads_(num_threads), words_(std::make_unique<Word[]>(size_t(num_threads))) {}

  int num_threads() const { return num_threads_; }

  // `thread` may touch what `instruction` of step `epoch` reads and writes, and nothing else.
  void enter(int thread, uint64_t epoch, int instruction, bool writes_kv) {
    words_[thread].value.store(
        epoch << kEpochShift | (writes_kv ? kWritesKv : 0) | uint64_t(instruction + 1),
        std::memory_order_seq_cst);
  }

  void leave(int thread) { words_[thread].value.store(kNowhere, std::memory_order_seq_cst); }

  bool any_in(uint64_t epoch) const {
    return any([=](uint64_t w) { return w >> kEpochShift == epoch; });
  }

  // Some thread may be in `instruction` of the step, or one before it.
  bool any_up_to(uint64_t epoch, int instruction) const {
    return any([=](uint64_t w) {
      return w >> kEpochShift == epoch && int(w & kInstruction) <= instruction + 1;
    });
  }

  // Some thread may still write K/V for a step before `epoch`.
  bool any_older_kv_writer(uint64_t epoch) const {
    return any([=](uint64_t w) { return (w & kWritesKv) != 0 && w >> kEpochShift < epoch; });
  }

 private:
  static constexpr uint64_t kNowhere = 0;
  static constexpr int kEpochShift = 24;
  static constexpr uint64_t kWritesKv = uint64_t{1} << 23;
  static constexpr uint64_t kInstruction = kWritesKv - 1;

  struct alignas(64) Word {
    typename Sync::template Atomic<uint64_t> value{0};
  };

  template <class Test>
  bool any(Test test) const {
    for (int t = 0; t < num_threads_; ++t) {
      const uint64_t word = words_[t].value.load(std::memory_order_seq_cst);
      if (word != kNowhere && test(word)) return true;
    }
    return false;
  }

  int num_threads_;
  std::unique_ptr<Word[]> words_;
};

}  // namespace takt
