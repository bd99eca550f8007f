# Whether and how the CUDA kernels are built. Says so in one line, and sets JAX_MOYE_HAVE_CUDA.

include(JaxMoyeArchs) # -> JAX_MOYE_<family>_ARCHS, jax_moye_family(), jax_moye_limit_archs(), ...

# The build backend asks the same program what to download.
set(_toolkit "${PROJECT_BINARY_DIR}/cuda-toolkit")
set(_cudacxx "${CMAKE_CUDA_COMPILER}")
if(_cudacxx STREQUAL "${JAX_MOYE_CHOSEN_NVCC}")
  set(_cudacxx "") # nobody named it: it is this file's choice of the last run
endif()
execute_process(
  COMMAND
    "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/build_backend/cuda_compiler.py" "--mode=${JAX_MOYE_CUDA}"
    "--prefer-wheel=${JAX_MOYE_CUDA_PREFER_WHEEL}" "--cudacxx=${_cudacxx}" "--archs=${JAX_MOYE_CUDA_ARCHS}"
    "--toolkit=${_toolkit}" "--cxx=${CMAKE_CXX_COMPILER}"
  OUTPUT_VARIABLE _choice
  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
foreach(_key mode nvcc version origin toolkit archs reason)
  set(_${_key}_found "")
  if(_choice MATCHES "(^|\n)${_key}=([^\n]*)")
    set(_${_key}_found "${CMAKE_MATCH_2}")
  endif()
endforeach()

if(_reason_found)
  set(JAX_MOYE_HAVE_CUDA OFF)
  if(_mode_found STREQUAL "AUTO" OR _mode_found STREQUAL "OFF")
    message(STATUS "jax_moye: CUDA kernels OFF, because ${_reason_found}")
  else()
    message(FATAL_ERROR "jax_moye: CUDA kernels cannot be built, because ${_reason_found}\n"
                        "Set CUDACXX, install the wheels that build_backend/cuda_compiler.py names, or set JAX_MOYE_CUDA=OFF.")
  endif()
  return()
endif()

if(_archs_found) # of AUTO: this machine's GPUs alone, unless they are newer than all that code can be made for
  set(JAX_MOYE_CUDA_ARCHS "${_archs_found}")
  jax_moye_limit_archs(_archs ${JAX_MOYE_PORTABLE_ARCHS})
  if(NOT _archs)
    set(JAX_MOYE_CUDA_ARCHS "")
  endif()
endif()
jax_moye_limit_archs(_archs ${JAX_MOYE_PORTABLE_ARCHS})
if(NOT _archs)
  message(FATAL_ERROR "jax_moye: JAX_MOYE_CUDA_ARCHS=${JAX_MOYE_CUDA_ARCHS} leaves none of ${JAX_MOYE_PORTABLE_ARCHS}")
endif()
message(STATUS "jax_moye: CUDA kernels ON, nvcc ${_version_found} from ${_origin_found}, architectures ${_archs}")
set(JAX_MOYE_HAVE_CUDA ON)
set(CMAKE_CUDA_COMPILER "${_nvcc_found}" CACHE FILEPATH "" FORCE)
if(NOT _origin_found STREQUAL "CUDACXX")
  set(JAX_MOYE_CHOSEN_NVCC "${_nvcc_found}" CACHE INTERNAL "the nvcc that build_backend/cuda_compiler.py chose")
endif()
if(_toolkit_found)
  set(CUDAToolkit_ROOT "${_toolkit_found}" CACHE PATH "" FORCE)
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER AND NOT DEFINED ENV{CUDAHOSTCXX})
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()
set(CMAKE_CUDA_ARCHITECTURES 80-real) # of CMake's own compiler check; every target of ours sets its list
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

# jax_moye_cuda_kernels(<target> <file>...): an object library of configs, each compiled for its family's architectures. A spill,
# a stack frame, a warning or an advisory of ptxas is an error.
function(jax_moye_cuda_kernels target)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE jax_moye_options)
  foreach(file IN LISTS ARGN)
    get_filename_component(config "${file}" NAME_WLE)
    jax_moye_family(family "${JAX_MOYE_KERNEL_${config}}" "${JAX_MOYE_DTYPE_${config}}")
    jax_moye_limit_archs(archs ${JAX_MOYE_${family}_ARCHS})
    list(GET JAX_MOYE_${family}_ARCHS 0 oldest)
    jax_moye_generate_code(generate_code ${oldest} ${archs})
    set_property(SOURCE "${file}" PROPERTY COMPILE_OPTIONS "${generate_code}")
  endforeach()
  # tools/nvcc_gate.py runs the compiler, leaves what ptxas says in <object>.ptxas.json, and makes errors of its warnings.
  # Not ptxas's own -Werror: its options travel with the embedded PTX, and a driver that compiles that for a future GPU
  # must not fail at a spill.
  set(launcher "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/nvcc_gate.py" ${CMAKE_CUDA_COMPILER_LAUNCHER})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF CUDA_COMPILER_LAUNCHER "${launcher}")
  target_compile_options(${target} PRIVATE -Xptxas=-v,-warn-spills,-warn-lmem-usage -Werror=all-warnings)
endfunction()

# jax_moye_inspect_kernels(<module> <kernels>): after linking, the registers of each config into _registers.json, which is
# installed beside the module, and, where a disassembler is found, the rules of tools/sass_rules.json on the machine code. What
# was counted for them stays in <build>/sass_counts.json, for the tests.
function(jax_moye_inspect_kernels module kernels)
  set(registers "${PROJECT_BINARY_DIR}/_registers.json")
  set(python "${Python_EXECUTABLE}")
  add_custom_command(
    TARGET ${module}
    POST_BUILD
    COMMAND "${python}" "${PROJECT_SOURCE_DIR}/tools/collect_registers.py" --output "${registers}"
            "$<TARGET_OBJECTS:${kernels}>"
    COMMAND_EXPAND_LISTS VERBATIM)
  install(FILES "${registers}" DESTINATION jax_moye)

  execute_process(COMMAND "${python}" "${PROJECT_SOURCE_DIR}/tools/check_sass.py" --available RESULT_VARIABLE missing
                  OUTPUT_VARIABLE tool OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(missing)
    message(STATUS "jax_moye: SASS rules not checked in this build: ${tool}")
    return()
  endif()
  set(subset "")
  if(JAX_MOYE_CONFIGS_LEFT_OUT OR JAX_MOYE_CUDA_CONFIGS)
    set(subset --subset)
  endif()
  target_link_options(${module} PRIVATE -Wl,--build-id=sha1) # by which the counts are known to be this module's
  add_custom_command(
    TARGET ${module}
    POST_BUILD
    COMMAND "${python}" "${PROJECT_SOURCE_DIR}/tools/check_sass.py" ${subset} --keep
            "${PROJECT_BINARY_DIR}/sass_counts.json" "$<TARGET_FILE:${module}>"
    VERBATIM)
endfunction()
