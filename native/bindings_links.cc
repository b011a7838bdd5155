// The part of takt._native that connects ranks: takt.parallel makes these over shared memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "parallel/channel.h"
#include "parallel/communicator.h"
#include "parallel/signal.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace takt {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Shared memory that ranks map: its first word is the abort word, and parts begin at offsets.
using Segment = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatBuffer = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::byte* part_of(const Segment& segment, size_t offset, size_t bytes) {
  if (offset % 64 != 0 || offset + bytes > segment.size()) {
    throw std::invalid_argument("a part of shared memory lies outside of it");
  }
  return reinterpret_cast<std::byte*>(segment.data()) + offset;
}

std::atomic<uint32_t>* abort_word(const Segment& segment) {
  return reinterpret_cast<std::atomic<uint32_t>*>(part_of(segment, 0, 64));
}

void check_floats(const Link& link, int64_t count) {
  if (size_t(count) * sizeof(float) > link.slot_bytes()) {
    throw std::invalid_argument(std::to_string(count) + " floats do not fit a slot of " +
                                std::to_string(link.slot_bytes()) + " bytes");
  }
}

void check_payload(const Communicator& group, int64_t count) {
  if (group.payload() != Payload::kF32 && count % kPayloadGroup != 0) {
    throw std::invalid_argument("compressed sums must have a multiple of 32 values, not " +
                                std::to_string(count));
  }
}

void check_done(bool done) {
  if (!done) throw std::runtime_error("another rank is gone");
}

void bind_communicator(nb::module_& m) {
  nb::class_<Communicator>(m, "Communicator")
      .def_static("bytes", &Communicator::bytes, "num_ranks"_a, "slot_bytes"_a)
      .def(
          "__init__",
          [](Communicator* self, const Segment& segment, size_t offset, int rank, int num_ranks,
             size_t slot_bytes, int64_t spin_ns, const std::string& payload) {
            new (self) Communicator(
                part_of(segment, offset, Communicator::bytes(num_ranks, slot_bytes)),
                abort_word(segment), rank, num_ranks, slot_bytes, spin_ns, payload_of(payload));
          },
          "segment"_a, "offset"_a, "rank"_a, "num_ranks"_a, "slot_bytes"_a, "spin_ns"_a,
          "payload"_a = "float32", nb::keep_alive<1, 2>())
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("num_ranks", &Communicator::num_ranks)
      .def(
          "all_reduce",
          [](Communicator& c, FloatBuffer values) {
            check_floats(c, int64_t(values.size()));
            check_payload(c, int64_t(values.size()));
            nb::gil_scoped_release release;
            check_done(c.all_reduce(values.data(), int64_t(values.size())));
          },
          "values"_a, "Sums `values` over the ranks, in place and in their order.")
      .def(
          "gather",
          [](Communicator& c, Floats values, FloatBuffer out) {
            const auto count = int64_t(values.size());
            check_floats(c, count);
            if (c.rank() == 0 && int64_t(out.size()) != count * c.num_ranks()) {
              throw std::invalid_argument("rank 0 gathers a part from each rank");
            }
            nb::gil_scoped_release release;
            check_done(c.gather(values.data(), count, out.data()));
          },
          "values"_a, "out"_a, "Puts all ranks' `values` into rank 0's `out`, in their order.");
}

void bind_channel_and_signal(nb::module_& m) {
  nb::class_<Channel>(m, "Channel")
      .def_static("bytes", &Channel::bytes, "num_slots"_a, "slot_bytes"_a)
      .def(
          "__init__",
          [](Channel* self, const Segment& segment, size_t offset, int num_slots,
             size_t slot_bytes, int64_t spin_ns) {
            new (self) Channel(part_of(segment, offset, Channel::bytes(num_slots, slot_bytes)),
                               abort_word(segment), num_slots, slot_bytes, spin_ns);
          },
          "segment"_a, "offset"_a, "num_slots"_a, "slot_bytes"_a, "spin_ns"_a,
          nb::keep_alive<1, 2>())
      .def("send",
           [](Channel& c, Floats values) {
             check_floats(c, int64_t(values.size()));
             nb::gil_scoped_release release;
             check_done(c.send(values.data(), int64_t(values.size())));
           })
      .def("receive", [](Channel& c, FloatBuffer values) {
        check_floats(c, int64_t(values.size()));
        nb::gil_scoped_release release;
        check_done(c.receive(values.data(), int64_t(values.size())));
      });

  nb::class_<Signal>(m, "Signal")
      .def_static("bytes", &Signal::bytes)
      .def(
          "__init__",
          [](Signal* self, const Segment& segment, size_t offset, int64_t spin_ns) {
            new (self) Signal(part_of(segment, offset, Signal::bytes()), abort_word(segment),
                              spin_ns);
          },
          "segment"_a, "offset"_a, "spin_ns"_a, nb::keep_alive<1, 2>())
      .def("post", &Signal::post, "value"_a)
      .def("wake", &Signal::wake)
      .def("wait", &Signal::wait, "value"_a, nb::call_guard<nb::gil_scoped_release>(),
           "Until the counter is at least `value`; False if aborted.");

  m.def(
      "abort_segment", [](const Segment& segment) { abort_word(segment)->store(1); },
      "segment"_a, "Ends all waits of links and signals in a segment, now and later.");
}

}  // namespace

void bind_links(nb::module_& m) {
  bind_communicator(m);
  bind_channel_and_signal(m);
}

}  // namespace takt
