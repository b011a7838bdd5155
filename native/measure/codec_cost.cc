#include "measure/codec_cost.h"

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "kernels/activation.h"
#include "kernels/codec.h"
#include "kernels/round_bf16.h"
#include "measure/rate.h"

namespace takt {
namespace {

constexpr int64_t kNumValues = 1 << 15;

double ns_per_value(double seconds, const std::function<void()>& once) {
  const double rate = work_rate(1, seconds, [&](int) -> Work {
    return [&] {
      once();
      return double(kNumValues);
    };
  });
  return 1e9 / rate;
}

std::vector<float> some_values() {
  std::vector<float> values;
  for (int64_t i = 0; i < kNumValues; ++i) values.push_back(float(i % 251) - 125.0f);
  return values;
}

}  // namespace

CodecCost codec_cost(const std::string& format, double seconds) {
  const std::vector<float> values = some_values();
  std::vector<float> sum(values.size());
  if (format == "bf16") {
    std::vector<uint16_t> coded(values.size());
    const double encode =
        ns_per_value(seconds, [&] { round_row_to_bf16(values.data(), kNumValues, coded.data()); });
    return {encode, ns_per_value(seconds, [&] { add_bf16(coded.data(), kNumValues, sum.data()); })};
  }
  if (format == "fp16") {
    std::vector<uint16_t> coded(values.size());
    const double encode =
        ns_per_value(seconds, [&] { round_row_to_f16(values.data(), kNumValues, coded.data()); });
    return {encode, ns_per_value(seconds, [&] { add_f16(coded.data(), kNumValues, sum.data()); })};
  }
  if (format == "int8") {
    std::vector<int8_t> coded(values.size());
    std::vector<float> scale(values.size() / size_t(kGroup));
    const double encode = ns_per_value(seconds, [&] {
      quantize_groups(values.data(), kNumValues, coded.data(), scale.data());
    });
    return {encode, ns_per_value(seconds, [&] {
              add_int8(coded.data(), scale.data(), kNumValues, sum.data());
            })};
  }
  throw std::invalid_argument("no codec named '" + format + "'; known: bf16, fp16, int8");
}

}  // namespace takt
