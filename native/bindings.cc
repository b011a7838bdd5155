// The module takt._native: everything Python sees of the native runtime.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "kernels/linear.h"
#include "measure/all_reduce_cost.h"
#include "measure/barrier_cost.h"
#include "measure/codec_cost.h"
#include "measure/instruction_peak.h"
#include "measure/read_bandwidth.h"
#include "pool/cpus.h"
#include "pool/pool.h"
#include "program/builder.h"
#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace takt {
namespace {

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A shared object whose const-ness Python cannot express.
struct Weight {
  SharedWeight packed;
};
struct Vector {
  SharedVector values;
};

SharedVector vector_of(const Vector* v) { return v != nullptr ? v->values : nullptr; }

// (raw uint8 [num_rows, row_bytes], index in QuantType, num_columns, index of the packed type)
using Part = nb::typed<nb::tuple, Bytes, int, int64_t, int>;

Weight pack_linear(const std::vector<Part>& parts, std::optional<Floats> bias, int num_threads) {
  std::vector<Bytes> kept;  // the buffers, while they are read without the interpreter's lock
  std::vector<RawMatrix> matrices;
  int64_t rows = 0;
  for (const Part& part : parts) {
    kept.push_back(nb::cast<Bytes>(part[0]));
    const Bytes& raw = kept.back();
    matrices.push_back({reinterpret_cast<const std::byte*>(raw.data()),
                        QuantType(nb::cast<int>(part[1])), int64_t(raw.shape(0)),
                        nb::cast<int64_t>(part[2]), QuantType(nb::cast<int>(part[3]))});
    rows += int64_t(raw.shape(0));
  }
  if (bias && int64_t(bias->shape(0)) != rows) {
    throw std::invalid_argument("the bias has " + std::to_string(bias->shape(0)) +
                                " values for " + std::to_string(rows) + " rows");
  }
  nb::gil_scoped_release release;
  return {pack_weight(matrices, bias ? bias->data() : nullptr, num_threads)};
}

Vector pack_vector(const Floats& values) {
  return {std::make_shared<const FloatVector>(values.data(), values.data() + values.shape(0))};
}

FieldOffset field_offset(std::map<std::string, size_t> offsets) {
  return [offsets = std::move(offsets)](const std::string& name) {
    const auto found = offsets.find(name);
    if (found == offsets.end()) throw std::invalid_argument("the step has no field " + name);
    return found->second;
  };
}

std::map<std::string, size_t> sizes(const nb::dict& d) {
  std::map<std::string, size_t> result;
  for (const auto& [key, value] : d) {
    result[nb::cast<std::string>(key)] = nb::cast<size_t>(value);
  }
  return result;
}

}  // namespace

StepLimits step_limits(const nb::dict& d) {
  const FieldOffset size = field_offset(sizes(d));
  const auto get = [&](const char* name) { return int64_t(size(name)); };
  return {.max_num_tokens = get("max_num_tokens"),
          .max_num_seqs = get("max_num_seqs"),
          .max_num_rows = get("max_num_rows"),
          .max_blocks_per_seq = get("max_blocks_per_seq"),
          .num_kv_groups = get("num_kv_groups"),
          .max_num_block_copies = get("max_num_block_copies"),
          .max_num_history = get("max_num_history"),
          .max_num_biases = get("max_num_biases"),
          .max_logprobs = get("max_logprobs")};
}

namespace {

KVType kv_type(const std::string& name) {
  if (name == "bfloat16") return KVType::kBF16;
  if (name == "float32") return KVType::kF32;
  if (name == "fp8_e4m3") return KVType::kFP8E4M3;
  if (name == "int8") return KVType::kInt8;
  throw std::invalid_argument("unknown type of K and V " + name +
                              "; known: bfloat16, float32, fp8_e4m3, int8");
}

Int8Tokens int8_tokens_of(const std::string& name) {
  if (name == "all") return Int8Tokens::kAll;
  if (name == "generated") return Int8Tokens::kGenerated;
  if (name == "none") return Int8Tokens::kNone;
  throw std::invalid_argument("unknown int8 tokens " + name + "; known: all, generated, none");
}

std::byte* address(uintptr_t value) { return reinterpret_cast<std::byte*>(value); }

void bind_builder(nb::module_& m) {
  nb::class_<ProgramBuilder>(m, "ProgramBuilder")
      .def(
          "__init__",
          [](ProgramBuilder* self, const nb::dict& limits, int64_t max_position, int num_threads,
             std::shared_ptr<KVPool> kv, const std::string& int8_tokens) {
            new (self) ProgramBuilder(step_limits(limits), max_position, num_threads, kv,
                                      int8_tokens_of(int8_tokens));
          },
          "limits"_a, "max_position"_a, "num_threads"_a, "kv"_a.none(), "int8_tokens"_a)
      .def(
          "embed",
          [](ProgramBuilder& b, const Weight& table, float scale, int64_t first_token,
             int64_t vocab_size) { return b.embed(table.packed, scale, first_token, vocab_size); },
          "table"_a, "scale"_a, "first_token"_a, "vocab_size"_a)
      .def(
          "norm",
          [](ProgramBuilder& b, int x, const Vector& weight, float eps, int residual,
             const Vector* post_weight) {
            return b.norm(x, weight.values, eps, residual, vector_of(post_weight));
          },
          "x"_a, "weight"_a, "eps"_a, "residual"_a, "post_weight"_a.none())
      .def("linear",
           [](ProgramBuilder& b, int x, const Weight& w) { return b.linear(x, w.packed); })
      .def(
          "rope_cache",
          [](ProgramBuilder& b, int qkv, int64_t num_heads, const Vector& cos, const Vector& sin,
             const Vector* q_norm, const Vector* k_norm,
             float norm_eps, int layer) {
            return b.rope_cache({qkv, num_heads, cos.values, sin.values, vector_of(q_norm),
                                 vector_of(k_norm), norm_eps, layer});
          },
          "qkv"_a, "num_heads"_a, "cos"_a, "sin"_a, "q_norm"_a.none(), "k_norm"_a.none(),
          "norm_eps"_a, "layer"_a)
      .def(
          "attention",
          [](ProgramBuilder& b, int q, int64_t num_heads, float scale, float softcap,
             int64_t window, int layer) {
            return b.attention(q, {num_heads, scale, softcap, window, layer});
          },
          "q"_a, "num_heads"_a, "scale"_a, "softcap"_a, "window"_a, "layer"_a)
      .def("gated_mlp",
           [](ProgramBuilder& b, int x, const Weight& gate_up, const Weight& down,
              const std::string& kind) {
             if (kind != "silu" && kind != "gelu_tanh") {
               throw std::invalid_argument("unknown activation " + kind +
                                           "; known: silu, gelu_tanh");
             }
             return b.gated_mlp(x, gate_up.packed, down.packed,
                                kind == "silu" ? Gate::kSilu : Gate::kGeluTanh);
           })
      .def("logits", [](ProgramBuilder& b, int x, const Weight& head,
                        float softcap) { return b.logits(x, head.packed, softcap); })
      .def("sample", &ProgramBuilder::sample)
      .def("all_reduce", &ProgramBuilder::all_reduce)
      .def("gather", &ProgramBuilder::gather)
      .def("send", &ProgramBuilder::send)
      .def("receive", &ProgramBuilder::receive)
      .def_prop_ro("num_instructions", &ProgramBuilder::num_instructions);
}

using Times = nb::ndarray<int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Stamps = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Copies the last step's profile: times [num_threads, num_instructions, 4] in the order of
// InstructionTimes, stamps [4].
void read_profile(const Program& program, const Times& times, const Stamps& stamps) {
  const StepProfile* profile = program.profile();
  const auto threads = size_t(program.num_threads());
  const auto instructions = size_t(program.num_instructions());
  if (profile == nullptr) throw std::invalid_argument("the program is not profiled");
  if (times.shape(0) != threads || times.shape(1) != instructions || times.shape(2) != 4 ||
      stamps.shape(0) != StepProfile::kNumStamps) {
    throw std::invalid_argument("a profile does not fit into these arrays");
  }
  const size_t row_bytes = instructions * sizeof(InstructionTimes);
  for (size_t t = 0; t < threads; ++t) {
    std::memcpy(times.data() + t * instructions * 4, profile->row(int(t)), row_bytes);
  }
  std::memcpy(stamps.data(), profile->stamps.data(), sizeof profile->stamps);
}

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* self, std::shared_ptr<Pool> pool, ProgramBuilder& builder,
             const nb::dict& input_offsets, const nb::dict& output_offsets) {
            new (self) Program(std::move(pool), builder.finish(field_offset(sizes(input_offsets))),
                               field_offset(sizes(output_offsets)));
          },
          "pool"_a, "builder"_a, "input_offsets"_a, "output_offsets"_a)
      .def(
          "run",
          [](Program& p, uintptr_t in, uintptr_t out) { p.run(address(in), address(out)); },
          "step_input_address"_a, "step_output_address"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "start", [](Program& p, uintptr_t in) { p.start(address(in)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "finish", [](Program& p, uintptr_t out) { p.finish(address(out)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "begin", [](Program& p, uintptr_t in) { p.begin(address(in)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def("execute", &Program::execute, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "end", [](Program& p, uintptr_t out) { p.end(address(out)); },
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("num_instructions", &Program::num_instructions)
      .def_prop_ro("num_threads", &Program::num_threads)
      .def_prop_ro("arena_bytes", &Program::arena_bytes)
      .def("set_profiling", &Program::set_profiling, "is_on"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("read_profile", &read_profile, "times"_a, "stamps"_a);
}

void bind_measure(nb::module_& m) {
  using Release = nb::call_guard<nb::gil_scoped_release>;
  m.def("multiply_instructions", [] {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& i : multiply_instructions()) pairs.emplace_back(i.name, i.arithmetic);
    return pairs;
  });
  m.def("instruction_peak", &instruction_peak, "name"_a, "num_threads"_a, "seconds"_a, Release());
  m.def("read_bandwidth", &read_bandwidth, "num_bytes"_a, "num_threads"_a, "seconds"_a,
        Release());
  m.def("codec_cost", [](const std::string& format, double seconds) {
    nb::gil_scoped_release release;
    const CodecCost cost = codec_cost(format, seconds);
    return std::pair(cost.encode_ns, cost.decode_ns);
  }, "format"_a, "seconds"_a);
  m.def("all_reduce_ns", [](const std::vector<int>& cpus, const std::string& payload,
                            int64_t num_values, int num_rounds) {
    nb::gil_scoped_release release;
    return all_reduce_ns(cpus, payload_of(payload), num_values, num_rounds);
  }, "cpus"_a, "payload"_a, "num_values"_a, "num_rounds"_a);
  m.def("barrier_cost_ns", &barrier_cost_ns, "num_threads"_a, "spins"_a, "num_steps"_a,
        Release());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels, thread pool and program replay of takt.ops.native.";
  m.attr("source_stamp") = source_stamp();

  nb::class_<Weight>(m, "Weight")
      .def_prop_ro("num_rows", [](const Weight& w) { return w.packed->rows(); })
      .def_prop_ro("num_columns", [](const Weight& w) { return w.packed->cols(); })
      .def_prop_ro("nbytes", [](const Weight& w) { return w.packed->bytes(); });
  nb::class_<Vector>(m, "Vector").def_prop_ro("width", [](const Vector& v) {
    return v.values->size();
  });
  m.def("pack_linear", &pack_linear, "parts"_a, "bias"_a.none(), "num_threads"_a);
  m.def("pack_vector", &pack_vector, "values"_a);

  nb::class_<KVPool>(m, "KVPool")
      .def(
          "__init__",
          [](KVPool* self, std::vector<int> group_of_layer, std::vector<int64_t> num_blocks,
             int64_t num_kv_heads, int64_t head_dim, int64_t block_size,
             const std::string& dtype) {
            new (self) KVPool(std::move(group_of_layer), std::move(num_blocks), num_kv_heads,
                              head_dim, block_size, kv_type(dtype));
          },
          "group_of_layer"_a, "num_blocks"_a, "num_kv_heads"_a, "head_dim"_a, "block_size"_a,
          "dtype"_a)
      .def("block_bytes", &KVPool::block_bytes, "group"_a)
      .def_prop_ro("num_layers", &KVPool::num_layers);

  nb::class_<Pool>(m, "Pool")
      .def(nb::init<int, int>(), "num_threads"_a, "num_peers"_a = 0)
      .def_prop_ro("num_threads", &Pool::num_threads)
      .def_prop_ro("spin_ns", &Pool::spin_ns)
      .def("abort", &Pool::abort)
      .def("close", &Pool::close, nb::call_guard<nb::gil_scoped_release>());
  m.def("num_usable_cpus", &num_usable_cpus,
        "CPUs in the affinity mask, or fewer where a cgroup's quota allows fewer.");

  bind_links(m);
  bind_steps(m);
  m.def("logits_block_rows", [](const nb::dict& limits, int64_t vocab_size) {
    return logits_block_rows(step_limits(limits), vocab_size);
  });
  bind_builder(m);
  bind_program(m);
  bind_measure(m);

  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const char* name : available_isas()) names.emplace_back(name);
    return names;
  });
  m.def("selected_isa", &selected_isa);
  m.def(
      "select_isa",
      [](const std::optional<std::string>& name) { select_isa(name ? name->c_str() : nullptr); },
      "name"_a.none());
}

}  // namespace takt
