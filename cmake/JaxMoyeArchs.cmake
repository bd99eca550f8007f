# The architectures the kernels are compiled for.

# SASS of one minor version serves the later ones of its major; sm_90 does not run sm_80's. The code of all four is made
# from compute_80's PTX, which is compiled once: nothing in these kernels asks which GPU it is for, and that step is most
# of the time. (nvcc 13's other optimizer, for compute_100 and up, leaves the main loops alone and makes the rest a quarter
# smaller; whether that is faster has not been measured.) The PTX is kept beside sm_80's code, for GPUs newer than these.
set(JAX_MOYE_PORTABLE_ARCHS 80 90 100 120)

# jax_moye_limit_archs(<out> <arch>...): those of the list that JAX_MOYE_CUDA_ARCHS asks for. Asking for 86 or 90a keeps
# what serves a GPU of that kind: the same major version, a minor version not above it.
function(jax_moye_limit_archs out)
  set(wanted "${JAX_MOYE_CUDA_ARCHS}")
  if(wanted STREQUAL "native")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE wanted
                    ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
      message(FATAL_ERROR "jax_moye: JAX_MOYE_CUDA_ARCHS=native, but nvidia-smi names no GPU")
    endif()
  endif()
  string(REGEX MATCHALL "[0-9]+(\\.[0-9])?" wanted "${wanted}")
  if(NOT wanted)
    set(${out} "${ARGN}" PARENT_SCOPE)
    return()
  endif()
  set(kept "")
  foreach(arch IN LISTS ARGN)
    math(EXPR major "${arch} / 10")
    foreach(want IN LISTS wanted)
      string(REPLACE "." "" want "${want}")
      math(EXPR want_major "${want} / 10")
      if(want_major EQUAL major AND want GREATER_EQUAL arch)
        list(APPEND kept "${arch}")
        break()
      endif()
    endforeach()
  endforeach()
  if(NOT kept)
    message(FATAL_ERROR "jax_moye: JAX_MOYE_CUDA_ARCHS=${JAX_MOYE_CUDA_ARCHS} leaves none of ${ARGN}")
  endif()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

# jax_moye_generate_code(<out> <arch>...): nvcc's option that compiles PTX for the oldest architecture of the portable family
# and machine code for each of the list.
function(jax_moye_generate_code out)
  set(code "")
  foreach(arch IN LISTS ARGN)
    if(arch EQUAL 80)
      list(APPEND code compute_80)
    endif()
    list(APPEND code sm_${arch})
  endforeach()
  list(JOIN code "," code)
  set(${out} "--generate-code=arch=compute_80,code=[${code}]" PARENT_SCOPE)
endfunction()
