# What `make install` puts where. Included from the top, behind all targets.
include(GNUInstallDirs)

install(TARGETS nibble_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nibble ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/nibble.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY models/tiny-v4 DESTINATION ${CMAKE_INSTALL_DATADIR}/nibble/models)
# The manual page holds what the program's help says, which only the program knows.
if(NOT CMAKE_CROSSCOMPILING AND NOT NIB_FRONT_END)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/nibble.1
    COMMAND sh ${CMAKE_SOURCE_DIR}/packaging/man.sh $<TARGET_FILE:nibble_program> ${CMAKE_SOURCE_DIR}/packaging/nibble.1.in
            >${CMAKE_BINARY_DIR}/nibble.1
    DEPENDS nibble_program packaging/man.sh packaging/nibble.1.in)
  add_custom_target(nibble_man ALL DEPENDS ${CMAKE_BINARY_DIR}/nibble.1)
  install(FILES ${CMAKE_BINARY_DIR}/nibble.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES packaging/completion/nibble.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME nibble)
install(FILES packaging/completion/nibble.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _nibble)
install(FILES packaging/completion/nibble.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
if(NIB_SERVER)
  install(FILES packaging/nibble.service DESTINATION lib/systemd/system)
  install(FILES packaging/serve.conf DESTINATION ${CMAKE_INSTALL_DOCDIR})
endif()
install(FILES README.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")

# The prefix is found from where the file lies, so that an installation can be moved and `cmake --install --prefix`
# need not configure again.
file(RELATIVE_PATH NIB_PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_SOURCE_DIR}/cmake/nibble.pc.in ${CMAKE_BINARY_DIR}/nibble.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
