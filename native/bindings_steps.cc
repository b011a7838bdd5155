// The part of takt._native that writes the inputs of steps.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "bindings.h"
#include "program/decode_step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace takt {
namespace {

using Tables = nb::ndarray<const int32_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::byte* address(uintptr_t value) { return reinterpret_cast<std::byte*>(value); }

FieldOffset offset_in(const nb::dict& offsets) {
  return [&offsets](const std::string& name) {
    return nb::cast<size_t>(offsets[nb::str(name.c_str(), name.size())]);
  };
}

// Values as Python's integers: five of the header (step_id, num_redone_tiles, stolen_run_ns,
// stolen_host_ns, computed_ns) and the token of each row.
nb::tuple read_output(uintptr_t header, uintptr_t token_ids, int64_t num_rows) {
  const auto* words = reinterpret_cast<const int64_t*>(header);
  const auto* tokens = reinterpret_cast<const int32_t*>(token_ids);
  const auto ids = nb::steal<nb::list>(PyList_New(num_rows));
  if (!ids.is_valid()) nb::raise_python_error();
  for (int64_t row = 0; row < num_rows; ++row) {
    PyObject* id = PyLong_FromLong(tokens[row]);
    if (id == nullptr) nb::raise_python_error();
    PyList_SET_ITEM(ids.ptr(), row, id);
  }
  return nb::make_tuple(words[0], words[4], words[5], words[6], words[7], ids);
}

}  // namespace

void bind_steps(nb::module_& m) {
  nb::class_<DecodeStep>(m, "DecodeStep")
      .def(
          "__init__",
          [](DecodeStep* self, const nb::dict& limits, int64_t block_size,
             const nb::dict& input_offsets, const nb::dict& output_offsets) {
            new (self) DecodeStep(step_limits(limits), block_size, offset_in(input_offsets),
                                  offset_in(output_offsets));
          },
          "limits"_a, "block_size"_a, "input_offsets"_a, "output_offsets"_a)
      .def(
          "advance",
          [](const DecodeStep& d, uintptr_t input, uintptr_t output, int64_t step_id,
             int64_t num_seqs) { d.advance(address(input), address(output), step_id, num_seqs); },
          "step_input_address"_a, "step_output_address"_a, "step_id"_a, "num_seqs"_a)
      .def(
          "write_blocks",
          [](const DecodeStep& d, uintptr_t input, const Tables& tables, const Rows& rows,
             int64_t width) {
            const BlockTablesView view{tables.data(), int64_t(tables.shape(0)),
                                       int64_t(tables.shape(1)), int64_t(tables.shape(2))};
            return d.write_blocks(address(input), view, rows.data(), int64_t(rows.shape(0)),
                                  width);
          },
          "step_input_address"_a, "tables"_a, "rows"_a, "width"_a);
  m.def("read_output", &read_output, "header_address"_a, "token_ids_address"_a, "num_rows"_a);
}

}  // namespace takt
