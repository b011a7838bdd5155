// A check that holds in every build and says where it failed:
//   CHECK(condition);
//   CHECK(condition, "with n = %d", n);
#pragma once
#include <cstdio>
#include <cstdlib>

#define CHECK(condition, ...)                                              \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s", __FILE__, __LINE__, #condition);   \
      std::fprintf(stderr, " " __VA_ARGS__);                               \
      std::fprintf(stderr, "\n");                                          \
      std::abort();                                                        \
    }                                                                      \
  } while (false)
