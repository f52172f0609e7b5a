# What `make install` puts where. Included from the top, behind all targets.
include(GNUInstallDirs)

install(TARGETS nibble_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/nibble.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY models/tiny-v4 DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble/models)
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# The prefix is found from where the file lies, so that an installation can be moved and `cmake --install --prefix`
# need not configure again.
file(RELATIVE_PATH NIB_PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_SOURCE_DIR}/cmake/nibble.pc.in ${CMAKE_BINARY_DIR}/nibble.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
