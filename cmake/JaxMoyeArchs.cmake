# The architectures the kernels are compiled for.

# SASS of one minor version serves the later ones of its major, and 80 without -real adds PTX for GPUs newer than all of
# these. sm_90 does not run sm_80's SASS.
set(JAX_MOYE_PORTABLE_ARCHS 80 90-real 100-real 120-real)

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
    string(REGEX MATCH "^[0-9]+" number "${arch}")
    math(EXPR major "${number} / 10")
    foreach(want IN LISTS wanted)
      string(REPLACE "." "" want "${want}")
      math(EXPR want_major "${want} / 10")
      if(want_major EQUAL major AND want GREATER_EQUAL number)
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
