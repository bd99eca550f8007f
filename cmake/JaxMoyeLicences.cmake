# What is compiled into the modules is distributed with them: nanobind's licence asks for its text beside the binary. pip's
# wheel of nanobind has it; another nanobind (a distribution's, a checkout) is not for building wheels that are published.
if(SKBUILD)
  execute_process(
    COMMAND
      "${Python_EXECUTABLE}" -c
      "import importlib.metadata as m; print(*(f.locate() for f in m.files('nanobind') or () if f.name == 'LICENSE'))"
    OUTPUT_VARIABLE _nanobind_licence
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  if(EXISTS "${_nanobind_licence}")
    install(FILES "${_nanobind_licence}" DESTINATION "${SKBUILD_METADATA_DIR}/licenses/nanobind")
  else()
    message(STATUS "jax_moye: no licence of nanobind found, and none is put into the wheel")
  endif()
endif()
