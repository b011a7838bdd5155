// A check that holds in every build and says where it failed:
//   CHECK(condition);
//   CHECK(condition, "with n = %d", n);
#pragma once
#include <cstdio>
#include <cstdlib>

namespace takt {

#if defined(TAKT_SANITIZED)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// Repetitions of one case with other numbers: a sanitizer looks at what is touched, which hardly
// differs between them, and makes each many times slower.
constexpr int fewer_if_sanitized(int repetitions) {
  return kIsSanitized ? (repetitions + 9) / 10 : repetitions;
}

}  // namespace takt

#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s", __FILE__, __LINE__, #condition);   \
      std::fprintf(stderr, " " __VA_ARGS__);                               \
      std::fprintf(stderr, "\n");                                          \
      std::abort();                                                        \
    }                                                                      \
  } while (false)
