# One library per folder of the tree, named for it: eldr_library(messages SOURCES ... LINK ...)
# gives the target eldr_messages and its alias eldr::messages. Headers are included from the
# repository's root ("messages/transport.hpp").
function(eldr_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;LINK_PRIVATE" ${ARGN})
  add_library(eldr_${name} STATIC ${ARG_SOURCES})
  add_library(eldr::${name} ALIAS eldr_${name})
  target_include_directories(eldr_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(eldr_${name} PUBLIC eldr::options ${ARG_LINK} PRIVATE ${ARG_LINK_PRIVATE})
endfunction()

# eldr_test(name SOURCES ... LINK ... [TIMEOUT seconds] [LABELS ...]): a GoogleTest program whose
# cases are listed in ctest one by one.
function(eldr_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE eldr::options ${ARG_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    ELDR_SOURCE_DIR="${PROJECT_SOURCE_DIR}" ELDR_BINARY_DIR="${PROJECT_BINARY_DIR}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()
