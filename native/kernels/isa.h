// Choice of instruction set at run time.
//
// Sources named *_isa.cc are compiled once per instruction set with -DTAKT_ISA=<namespace>; each
// build defines, in namespace takt::TAKT_ISA, a constant table of function pointers:
//
//   // foo_kernels.h
//   struct FooKernels { void (*foo)(const float* x, float* out); };
//   TAKT_DECLARE_ISA_TABLE(FooKernels, kFooKernels)
//   // foo_isa.cc
//   namespace takt::TAKT_ISA { const FooKernels kFooKernels = {&foo}; }
//   // foo.cc
//   void foo(const float* x, float* out) {
//     static constexpr const FooKernels* kTables[] = TAKT_ISA_TABLES(kFooKernels);
//     kTables[isa_index()]->foo(x, out);
//   }
//
// The set "amx" is "avx512_bf16" with a matrix unit for products of int8 rows (tile_kernels.h) and for
// attention of many rows to bf16 (attention_kernels.h); its other kernels are those of
// "avx512_bf16".
//
// Everything else in an *_isa.cc lies in an anonymous namespace or in takt::TAKT_ISA. An inline
// function or a template of another namespace (std's too) that the compiler does not inline would
// be emitted as a shared definition, and the linker could keep the copy with instructions that the
// CPU lacks. The build's test `isa_symbols` checks the objects for such definitions.
#pragma once

namespace takt {

// Under the thread sanitizer the kernels are built once, for the CPU that builds them: no two threads
// meet in one instruction set that do not in another.
#if defined(__x86_64__) && !defined(TAKT_ONE_ISA)
#define TAKT_X86_ISAS
#endif

#if defined(TAKT_X86_ISAS)
inline constexpr int kNumIsas = 5;
#define TAKT_DECLARE_ISA_TABLE(Table, name) \
  namespace avx512_bf16 {                   \
  extern const Table name;                  \
  }                                         \
  namespace avx512 {                        \
  extern const Table name;                  \
  }                                         \
  namespace avx2 {                          \
  extern const Table name;                  \
  }                                         \
  namespace generic {                       \
  extern const Table name;                  \
  }
// Of kernels that use the bf16 instructions. All others are the same with them and without, but
// that attention rounds by them as writing to the KV cache does; a sanitizer, under which they
// take longest to compile, looks at them once.
#define TAKT_ISA_TABLES_WITH_BF16(name)                                      \
  {&avx512_bf16::name, &avx512_bf16::name, &avx512::name, &avx2::name, &generic::name}
#if defined(TAKT_SANITIZED)
#define TAKT_ISA_TABLES(name) \
  {&avx512::name, &avx512::name, &avx512::name, &avx2::name, &generic::name}
#else
#define TAKT_ISA_TABLES(name) TAKT_ISA_TABLES_WITH_BF16(name)
#endif
#else
inline constexpr int kNumIsas = 1;
#define TAKT_DECLARE_ISA_TABLE(Table, name) \
  namespace generic {                       \
  extern const Table name;                  \
  }
#define TAKT_ISA_TABLES(name) {&generic::name}
#define TAKT_ISA_TABLES_WITH_BF16(name) TAKT_ISA_TABLES(name)
#endif

// Index of the selected build in TAKT_ISA_TABLES; the best that the CPU has until select_isa.
int isa_index();

// Whether the selected set has a matrix unit.
bool selected_isa_has_tiles();

}  // namespace takt
