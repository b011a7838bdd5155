# Test: an object of one instruction set shares no definition with the rest of the program.
#   cmake -DNM=<nm> -DISA=<namespace> "-DOBJECTS=a.o;b.o" -P isa_symbols.cmake
# Weak definitions (W, V) and unique ones (u) outside takt::<ISA> are inline functions, templates
# or their variables: the linker keeps one of all objects', maybe the one that needs AVX-512.
foreach(object ${OBJECTS})
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [WVu] [^\n]*" shared "${symbols}")
  list(FILTER shared EXCLUDE REGEX " [WVu] [^(]*takt::${ISA}::")
  if(shared)
    list(JOIN shared "\n" shared)
    message(FATAL_ERROR "${object} shares:\n${shared}")
  endif()
endforeach()
