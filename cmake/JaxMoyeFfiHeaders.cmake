# XLA's FFI headers come with jaxlib: the pinned one of an isolated build, the installed one otherwise. Sets
# JAX_MOYE_XLA_FFI_INCLUDE.
set(_ffi_include "${JAX_MOYE_XLA_FFI_INCLUDE}")
if(NOT _ffi_include)
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('jaxlib').origin).parent / 'include')"
    OUTPUT_VARIABLE _ffi_include
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE _ffi_error
    RESULT_VARIABLE _ffi_result)
  if(_ffi_result)
    message(FATAL_ERROR "jax_moye: ${Python_EXECUTABLE} has no jaxlib, whose XLA FFI headers the build needs: "
                        "pip install jaxlib, or -DJAX_MOYE_XLA_FFI_INCLUDE=...")
  endif()
endif()
if(NOT EXISTS "${_ffi_include}/xla/ffi/api/c_api.h")
  message(FATAL_ERROR "jax_moye: no xla/ffi/api/c_api.h under ${_ffi_include}")
endif()

file(STRINGS "${_ffi_include}/xla/ffi/api/c_api.h" _ffi_version REGEX "#define XLA_FFI_API_(MAJOR|MINOR) [0-9]+")
string(REGEX REPLACE "#define XLA_FFI_API_(MAJOR|MINOR) " "" _ffi_version "${_ffi_version}")
list(JOIN _ffi_version "." _ffi_version)
message(STATUS "jax_moye: XLA FFI API ${_ffi_version} from ${_ffi_include}")
# A normal variable hides the cache entry: an isolated build's folder is another one each time.
set(JAX_MOYE_XLA_FFI_INCLUDE "${_ffi_include}")
