# libjpeg-turbo, libpng, zlib and libwebp as one target `codecs`: static where the archives are there, so that the
# backend also loads where other versions of them, or none, are installed.

function(find_codec variable header)
  find_path(${variable}_INCLUDE ${header} REQUIRED)
  set(libraries)
  foreach(name ${ARGN})
    find_library(${variable}_${name} NAMES lib${name}.a ${name} REQUIRED)
    list(APPEND libraries ${${variable}_${name}})
  endforeach()
  target_include_directories(codecs SYSTEM INTERFACE ${${variable}_INCLUDE})
  target_link_libraries(codecs INTERFACE ${libraries})
endfunction()

add_library(codecs INTERFACE)
find_codec(JPEG jpeglib.h jpeg)
find_codec(WEBP webp/demux.h webpdemux webp)
find_codec(PNG png.h png16)
find_codec(ZLIB zlib.h z)
# Since 1.3 libwebp keeps its colour conversion in a library of its own.
find_library(SHARPYUV NAMES libsharpyuv.a sharpyuv)
if(SHARPYUV)
  target_link_libraries(codecs INTERFACE ${SHARPYUV})
endif()
target_link_libraries(codecs INTERFACE m)
target_sources(codecs INTERFACE
  $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:${CMAKE_CURRENT_LIST_DIR}/stderr.cc>)
target_link_libraries(codecs INTERFACE ${CMAKE_DL_LIBS})
