# The architectures the kernels are compiled for: a set for each family of configs.

# SASS of one minor version serves the later ones of its major; sm_90 does not run sm_80's. The code of all four is made
# from compute_80's PTX, which is compiled once: nothing in these kernels asks which GPU it is for, and that step is most
# of the time. (nvcc 13's other optimizer, for compute_100 and up, leaves the main loops alone and makes the rest a quarter
# smaller; whether that is faster has not been measured.) The PTX is kept beside sm_80's code, for GPUs newer than these.
set(JAX_MOYE_PORTABLE_ARCHS 80 90 100 120)
# mma.sync of 8-bit floats begins at sm_89, and so does the PTX.
set(JAX_MOYE_FP8_ARCHS 89 90 100 120)
# wgmma and setmaxnreg are sm_90a's alone: its code runs on compute capability 9.0 and nowhere else, its PTX likewise.
set(JAX_MOYE_SM90_ARCHS 90a)

# jax_moye_family(<out> <kernel> <dtype>): which of the sets above a config is compiled for: PORTABLE, FP8 or SM90.
function(jax_moye_family out kernel dtype)
  set(family PORTABLE)
  if(kernel MATCHES "^sm90_")
    set(family SM90)
  elseif(kernel MATCHES "^sm80_" AND dtype MATCHES "^e[45]m[32](xe[45]m[32])?$")
    set(family FP8)
  endif()
  set(${out} "${family}" PARENT_SCOPE)
endfunction()

# jax_moye_limit_archs(<out> <arch>...): those of the list that JAX_MOYE_CUDA_ARCHS asks for; none may be left. Asking for
# 86 or 90a keeps what serves a GPU of that kind: the same major version, a minor version not above it.
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
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

# jax_moye_cuda_configs(<out>): the configs that match JAX_MOYE_CUDA_CONFIGS and have an architecture to be compiled for.
# Those of sm90_* are left out of a build for sm_80 alone; says so.
function(jax_moye_cuda_configs out)
  set(kept "")
  set(dropped 0)
  set(wanted ${JAX_MOYE_BUILT_CONFIGS})
  if(JAX_MOYE_CUDA_CONFIGS)
    list(FILTER wanted INCLUDE REGEX "${JAX_MOYE_CUDA_CONFIGS}")
    if(NOT wanted)
      message(FATAL_ERROR "jax_moye: JAX_MOYE_CUDA_CONFIGS=${JAX_MOYE_CUDA_CONFIGS} matches none of the configs of this build")
    endif()
    list(LENGTH wanted number)
    message(STATUS "jax_moye: ${number} configs are compiled for CUDA")
  endif()
  foreach(config IN LISTS wanted)
    jax_moye_family(family "${JAX_MOYE_KERNEL_${config}}" "${JAX_MOYE_DTYPE_${config}}")
    jax_moye_limit_archs(archs ${JAX_MOYE_${family}_ARCHS})
    if(archs)
      list(APPEND kept "${config}")
    else()
      math(EXPR dropped "${dropped} + 1")
    endif()
  endforeach()
  if(dropped)
    message(STATUS "jax_moye: ${dropped} configs have no code for the architectures ${JAX_MOYE_CUDA_ARCHS} and are left out")
  endif()
  set(${out} "${kept}" PARENT_SCOPE)
endfunction()

# jax_moye_generate_code(<out> <oldest> <arch>...): nvcc's option that compiles PTX for a family's oldest architecture, and
# machine code from it for each of the list. The PTX is kept where that architecture is asked for, for GPUs newer than
# these; PTX of sm_90a serves no other GPU and is not.
function(jax_moye_generate_code out oldest)
  set(code "")
  foreach(arch IN LISTS ARGN)
    if(arch STREQUAL oldest AND NOT arch MATCHES "a$")
      list(APPEND code compute_${arch})
    endif()
    list(APPEND code sm_${arch})
  endforeach()
  list(JOIN code "," code)
  set(${out} "--generate-code=arch=compute_${oldest},code=[${code}]" PARENT_SCOPE)
endfunction()
