# The front door; CMake does the work. `make demo` and `make check` need nothing but make, git and root or sudo.
#
#   make             build into build/
#   make demo        install missing packages, build the program, let the bundled model answer three questions
#   make check       install missing packages, build, test, sanitizers on the short tests, warnings of clang
#   make check-full  the same with the long tests
#   make asan        the short tests under sanitizers only
#   make opcheck     every op of every backend against the reference only
#   make cuda        build with the CUDA backend into build-cuda/ (needs nvcc 13)
#   make check-cuda  what needs a card: every op against the reference, goldens, compute-sanitizer, speeds
#   make fuzz        fuzz every parser for SECONDS each, 600 if not given (needs clang)
#   make install     to PREFIX, /usr/local if not given; DESTDIR is honoured
#   make clean       remove the build folders

PREFIX ?= /usr/local
SECONDS ?= 600
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: all demo check check-full check-cuda asan opcheck cuda fuzz install clean packages
all:
	cmake --preset release
	cmake --build build -j $(JOBS)

packages:
	@scripts/install-packages.sh

demo: packages
	@scripts/demo.sh $(JOBS)

check: packages
	@scripts/check.sh --jobs $(JOBS) release clang asan

check-full: packages
	@scripts/check.sh --jobs $(JOBS) --full release clang asan

asan: packages
	@scripts/check.sh --jobs $(JOBS) asan

opcheck: packages
	@scripts/check.sh --jobs $(JOBS) opcheck

cuda: packages
	cmake --preset cuda
	cmake --build build-cuda -j $(JOBS)

check-cuda: packages
	@scripts/cuda-check.sh --build $(JOBS)

fuzz: packages
	@scripts/fuzz.sh --jobs $(JOBS) --seconds $(SECONDS)

install:
	cmake --preset release
	cmake --build build -j $(JOBS) --target nibble_program nibble_man
	cmake --install build --prefix "$(PREFIX)"

clean:
	rm -rf build build-asan build-clang build-cuda build-card build-fuzz build-coverage
