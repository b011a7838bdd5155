# Writes OUTPUT, which defines takt::source_stamp(): what the module under SOURCES is built from.
#   cmake -DSOURCES=<native> -DOUTPUT=<file.cc> -P source_stamp.cmake
# takt/ops/native/source_stamp.py computes the same from the files it finds.
file(GLOB_RECURSE files RELATIVE ${SOURCES} ${SOURCES}/*.cc ${SOURCES}/*.h)
list(FILTER files EXCLUDE REGEX "^(tests|benchmarks)/")
list(SORT files)
set(lines "")
foreach(file ${files})
  file(SHA256 ${SOURCES}/${file} digest)
  string(APPEND lines "${file} ${digest}\n")
endforeach()
string(SHA256 stamp "${lines}")
file(WRITE ${OUTPUT}
     "#include \"bindings.h\"\n\nconst char* takt::source_stamp() { return \"${stamp}\"; }\n")
