// What it costs one thread to compress and expand the values of an all-reduce.
#pragma once
#include <string>

namespace takt {

struct CodecCost {
  double encode_ns;  // of a value
  double decode_ns;  // of a value, added to a sum
};

// `format` is bf16, fp16, or int8 in groups of 32. Values lie in the second-level cache. Throws
// std::invalid_argument for another format.
CodecCost codec_cost(const std::string& format, double seconds);

}  // namespace takt
