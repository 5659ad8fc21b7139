# What `cmake --install` and `cpack` put beside the programs: configs, scripts for data, documents, and manual pages if help2man is there to
# make them of --help. Needs the list `programs`.

find_program(HELP2MAN help2man)
if(HELP2MAN AND NOT CMAKE_CROSSCOMPILING) # it runs the programs
  set(pages ${PROJECT_BINARY_DIR}/pages)
  file(MAKE_DIRECTORY ${pages})
  foreach(name IN LISTS programs)
    add_custom_command(
      OUTPUT ${pages}/${name}.1
      COMMAND ${HELP2MAN} --no-info --no-discard-stderr --source=hctrain --output=${pages}/${name}.1 $<TARGET_FILE:${name}>
      DEPENDS ${name}
      VERBATIM)
    list(APPEND page_files ${pages}/${name}.1)
  endforeach()
  add_custom_target(pages ALL DEPENDS ${page_files})
  install(FILES ${page_files} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()

set(shared ${CMAKE_INSTALL_DATADIR}/hctrain)
install(DIRECTORY configs DESTINATION ${shared})
install(DIRECTORY data DESTINATION ${shared} USE_SOURCE_PERMISSIONS PATTERN corpus EXCLUDE PATTERN __pycache__ EXCLUDE)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} USE_SOURCE_PERMISSIONS PATTERN __pycache__ EXCLUDE)
install(FILES README.md CHANGELOG.md LICENSE CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})

# cpack: a package for Debian and its relatives. Libraries that programs are linked with are found by dpkg-shlibdeps; those that they load
# are named here: a device's driver, and OpenBLAS, without which CPUs multiply with slower kernels.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME hctrain)
set(CPACK_PACKAGE_VENDOR "The hctrain authors")
set(CPACK_PACKAGE_CONTACT "The hctrain authors <hctrain@localhost>")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "trainer for GPT models with hyper-connections
Trains GPTs with plain residual connections or with hyper-connections (mHC
and its family) on GPUs and CPUs over OpenCL or Vulkan, alone or data
parallel over MPI; prepares text, samples, evaluates, exports to PyTorch,
and draws what the residual matrices do.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "pocl-opencl-icd | opencl-icd, libopenblas0")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin, python3-matplotlib")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "mesa-opencl-icd")
include(CPack)
