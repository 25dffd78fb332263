# Finds the C++ Actor Framework where no CMake package ships with it (Debian's libcaf-dev 0.17).
# Defines CAF::core; CAF_VERSION is read from the header.
find_path(CAF_INCLUDE_DIR caf/all.hpp)
find_library(CAF_CORE_LIBRARY caf_core)
mark_as_advanced(CAF_INCLUDE_DIR CAF_CORE_LIBRARY)

if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" version_line REGEX "#define +CAF_VERSION +[0-9]+")
  string(REGEX MATCH "[0-9]+$" version_number "${version_line}")
  math(EXPR version_major "${version_number} / 10000")
  math(EXPR version_minor "(${version_number} / 100) % 100")
  math(EXPR version_patch "${version_number} % 100")
  set(CAF_VERSION "${version_major}.${version_minor}.${version_patch}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_CORE_LIBRARY CAF_INCLUDE_DIR
                                  VERSION_VAR CAF_VERSION)
if(CAF_FOUND AND NOT TARGET CAF::core)
  find_package(Threads REQUIRED)
  add_library(CAF::core SHARED IMPORTED)
  set_target_properties(CAF::core PROPERTIES
    IMPORTED_LOCATION "${CAF_CORE_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()
