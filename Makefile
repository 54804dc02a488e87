# `make demo` and `make test` do everything on a fresh clone; they need Linux, make and Python 3.11, 3.12 or 3.13.
#
#   PYTHON=…      the interpreter to use          (default: the newest of those on the path)
#   ORT=cpu|gpu   the build of ONNX Runtime       (default: gpu where an NVIDIA driver answers, else cpu)

ifneq ($(shell uname -s),Linux)
$(error Sluice runs on Linux (it needs CPU affinity, memfd and pidfd); this is $(shell uname -s))
endif

IS_USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
ifndef PYTHON
PYTHON := $(shell for python in python3.13 python3.12 python3.11 python3; do \
	if $$python -c '$(IS_USABLE)' >/dev/null 2>&1; then echo $$python; break; fi; done)
endif

ifndef ORT
ORT := $(shell if nvidia-smi -L >/dev/null 2>&1 || test -e /proc/driver/nvidia/version; then echo gpu; else echo cpu; fi)
endif
ifeq ($(filter cpu gpu,$(ORT)),)
$(error ORT is "$(ORT)"; it must be cpu or gpu)
endif

# One thread for NumPy's linear algebra: its default of one a core makes small products slower, the more so on a busy
# machine. Workers set the threads of ONNX Runtime themselves.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
# Where this is set, every process that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

DEMO := .venv-demo
TEST := .venv-test
# Ray takes 240 MB without its dependencies, so the tests of clusters have an environment of their own.
CLUSTER := .venv-cluster
KSERVE := .venv-kserve
# The newest one that was tried. It has 450 MB of dependencies, so the tests do not have it.
KSERVE_VERSION := 0.21.0
comma := ,
# Lint, which is quick to fail, and all tests but the timed ones. What needs the compiled tree comes first, with tests
# of servers beside it, which leave the compiler the processors; of the others, the longest are first.
PARTS := lint test-long-simulations test-compiled-hot-path test-compiled-core test-system-p test-system-t \
	test-front-ends test-core-rest test-system-l test-system-q-s test-core-simulation test-core-gateway test-deploy \
	test-system-m-o test-system-e-k test-conformance test-system-0-9a-d test-system-u-z test-grpcio test-core-hashes \
	test-fresh-seeds
# This many of them run at a time. It is more than there are cores, since tests of servers wait half of their time.
JOBS := 6
# Wheels only, so that no compiler is needed; modules are compiled when first imported, which is faster.
PIP_OPTIONS := -qq --disable-pip-version-check --no-compile --only-binary :all:

.PHONY: help demo check test compiled simulate lint structure test-bounds conformance bench reference pins \
	screenshots triton peers cluster clean \
	check-unit test-timed test-compiled compile-if-possible $(PARTS)
.DELETE_ON_ERROR:

help:
	@echo "make demo         serve a cascade and an ensemble, replay traffic against them, print a table"
	@echo "make check        lint, check types and imports, test what needs no server: for the inner loop"
	@echo "make test         lint, check types and imports, run all tests"
	@echo "make simulate     run random simulations on fresh seeds: SEEDS=number, SEED=first, MACHINE=scheduler or gateway"
	@echo "make compiled     compile core and hot path, where there is a C compiler, into a tree for tests"
	@echo "make lint         the first three only"
	@echo "make structure    print import circles, duplicate class names, and the size of each folder"
	@echo "make test-bounds  run tests of both servers with the lowest and the newest versions of bounded dependencies"
	@echo "make conformance  replay what Triton's own tests ask of a server, print a table"
	@echo "make bench        run the benchmarks"
	@echo "make reference    write the generated pages of the documentation"
	@echo "make pins         write the versions of all packages in images as pip resolves them now"
	@echo "make screenshots  take the pictures of the page and of a report for the docs: seven minutes; needs Chromium"
	@echo "make cluster      run tests of gateways over a Ray cluster on this machine, in an environment of its own"
	@echo "make triton       set up the Triton server that tests run against (they do it themselves, too)"
	@echo "make peers        measure Sluice beside other servers for 90 minutes, write docs/evidence/peers.md: PEERS=options"
	@echo "make clean        remove the virtual environments, caches and the demo's models"

demo: $(DEMO)/installed-$(ORT)
	@$(DEMO)/bin/python -m examples.digits.demo

# Tests that time what a server does come last, alone.
test: $(TEST)/installed-$(ORT)
	@$(MAKE) --no-print-directory --jobs=$(JOBS) --output-sync=target --keep-going $(PARTS)
	@$(MAKE) --no-print-directory test-timed

check: $(TEST)/installed-$(ORT)
	@start=$$(date +%s); $(MAKE) --no-print-directory --jobs=2 --output-sync=target lint check-unit && \
		echo "make check: passed in $$(($$(date +%s) - start)) s"

# Properties are tried on the same examples each time, so that a test fails before a change as it does after it.
PYTEST_ALONE := $(TEST)/bin/python -m pytest -p no:cacheprovider --hypothesis-seed=0
# Tests leave the processor to the compilation, which several parts wait for.
PYTEST := nice -n 5 $(PYTEST_ALONE)

check-unit: $(TEST)/installed-$(ORT)
	@$(PYTEST) -q tests/unit --ignore=tests/unit/gateway

# The long simulations run where the core is compiled, which takes half the time, or where nothing can be compiled. Both
# builds decide the same (tests/compiled, and what runs on both).
LONG_SIMULATIONS := $(addprefix tests/simulation/test_,autoscaling.py overload.py pauses.py planned.py \
		scheduler_simulation.py shares.py) \
	tests/unit/loadgen/papers tests/unit/loadgen/reports/test_search.py \
	tests/unit/loadgen/run/test_search_in_simulation.py

# The core is what needs no server. A file of tests that no other part names is in test-core-rest. What the core decides
# must not depend on the order of sets, so what compares its decisions runs once more with other hashes of strings: where
# the core is compiled, as a part of test-compiled-core.
test-core-rest: $(TEST)/installed-$(ORT)
	@PYTHONHASHSEED=1 $(PYTEST) tests --ignore=tests/simulation --ignore=tests/unit/gateway --ignore=tests/system --ignore=tests/conformance --ignore=tests/compiled \
		--ignore=tests/deploy --ignore=tests/cluster $(addprefix --ignore=,$(LONG_SIMULATIONS))

test-core-gateway: $(TEST)/installed-$(ORT)
	@$(PYTEST) tests/unit/gateway

test-core-simulation: $(TEST)/installed-$(ORT)
	@PYTHONHASHSEED=1 $(PYTEST) tests/simulation $(addprefix --ignore=,$(LONG_SIMULATIONS))

test-core-hashes: compile-if-possible
	@test -e $(COMPILED).made || PYTHONHASHSEED=2 $(PYTEST) tests/properties/test_scheduler_machine.py tests/properties/test_served.py \
		tests/properties/test_run_queue.py tests/properties/test_places.py tests/properties/test_residency.py \
		tests/simulation/test_equivalence.py tests/unit/batcher/drivers

# The compiled modules stand in a tree of its own, so that everything else tests the pure one; it is compiled again only
# after a change of it.
COMPILED := $(CURDIR)/.cache/compiled-tree
ON_COMPILED := PYTHONPATH=$(COMPILED) SLUICE_TEST_BUILD=compiled

compiled: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.compiled $(COMPILED)

# Tests of the hot path, once more where it is compiled. Those that look into the connections of HTTP/2 by a stream of
# their own cannot, nor those of calls by a data plane of their own: no class inherits from a compiled one.
HOT_PATH := $(addprefix tests/unit/gateway/,executors front_ends grpc http http2 inference observability runtime tensors) \
	$(addprefix --ignore=tests/unit/gateway/grpc/transport/http2/test_,connection.py fuzz.py h2spec.py) \
	--ignore=tests/unit/gateway/inference/test_model_calls.py \
	tests/unit/mps/ipc tests/unit/mps/worker \
	$(addprefix tests/conformance/test_,endpoints.py fuzz.py hostile_input.py protocol_errors.py tensors.py trouble.py) \
	$(addprefix tests/system/test_,ensembles.py front_ends.py large_requests.py tritonclient.py worker_faults.py)

test-compiled: test-compiled-core test-compiled-hot-path test-long-simulations

compile-if-possible: $(TEST)/installed-$(ORT)
	@rm -f $(COMPILED).made; $(TEST)/bin/python -m scripts.compiled $(COMPILED); case $$? in \
	0) touch $(COMPILED).made;; 3) echo "make test-compiled: not compiled";; *) exit 1;; esac

test-compiled-core: compile-if-possible
	@test ! -e $(COMPILED).made || { \
		PYTHONHASHSEED=2 $(ON_COMPILED) $(PYTEST) -m "not timed" tests/compiled tests/unit/batcher tests/properties \
		$(addprefix tests/simulation/test_,equivalence.py whole_gateway.py) && \
		$(ON_COMPILED) $(TEST)/bin/python -m scripts.simulate --seconds 5; }

test-compiled-hot-path: compile-if-possible
	@test ! -e $(COMPILED).made || $(ON_COMPILED) $(PYTEST) -m "not timed" $(HOT_PATH)

test-long-simulations: compile-if-possible
	@if test -e $(COMPILED).made; then export $(ON_COMPILED); fi; $(PYTEST) $(LONG_SIMULATIONS)

# New seeds each time, which are printed.
test-fresh-seeds: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.simulate --seconds 6

simulate: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.simulate $(if $(MACHINE),--machine $(MACHINE)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(SEED),--seed $(SEED))

# test-system-e-k: the files tests/system/test_[e-k]*.py.
$(filter test-system-%,$(PARTS)): test-system-%: $(TEST)/installed-$(ORT)
	@$(PYTEST) -m "not timed" tests/system/test_[$*]*.py

test-conformance: $(TEST)/installed-$(ORT)
	@$(PYTEST) -m "not timed" tests/conformance

# The image, the manifests and rolling restarts.
test-deploy: $(TEST)/installed-$(ORT)
	@$(PYTEST) tests/deploy

# What clients see of a server, once more with front ends. They read no models, so bad ones are not tried again; the rest
# of tests/conformance starts no server.
FRONT_ENDS := $(addprefix tests/conformance/test_,dynamic_batching.py endpoints.py fuzz.py hostile_input.py \
		model_update.py openapi.py protocol_errors.py tensors.py trouble.py v1_and_sagemaker.py) \
	$(addprefix tests/system/test_,access.py drain.py ensembles.py explain.py lifecycle_protocol.py management.py \
		model_changes.py optional_inputs.py response_cache.py statuses.py tritonclient.py)

test-front-ends: $(TEST)/installed-$(ORT)
	@SLUICE_TEST_FRONT_ENDS=2 $(PYTEST) -m "not timed" $(FRONT_ENDS)

# The tests of clients over gRPC, with the server on the core of grpcio.
test-grpcio: $(TEST)/installed-$(ORT)
	@GRPC_SERVER=grpcio $(PYTEST) -m "not timed" -k "grpc or tls or certificate" tests/system/test_access.py \
		tests/system/test_drain.py tests/system/test_tritonclient.py tests/conformance/test_endpoints.py \
		tests/conformance/test_protocol_errors.py tests/conformance/test_hostile_input.py

test-timed: $(TEST)/installed-$(ORT)
	@$(PYTEST_ALONE) -m timed tests/system tests/conformance

cluster: $(CLUSTER)/installed-$(ORT)
	@$(CLUSTER)/bin/python -m pytest -p no:cacheprovider tests/cluster

reference: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.reference

pins: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.pins

screenshots: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m scripts.screenshots

test-bounds:
	@"$(PYTHON)" scripts/try_bounds.py --extra $(ORT)

structure:
	@"$(PYTHON)" scripts/structure.py

conformance: $(TEST)/installed-$(ORT)
	@$(MAKE) --no-print-directory $(KSERVE)/installed-$(KSERVE_VERSION) || \
		echo "make: kserve $(KSERVE_VERSION) could not be installed; KServe's clients are not tried"
	@KSERVE_PYTHON=$$(test ! -e $(KSERVE)/installed-$(KSERVE_VERSION) || echo $(CURDIR)/$(KSERVE)/bin/python) \
		$(TEST)/bin/python -m pytest -q --no-header -p tests.support.conformance -m behaviour

$(KSERVE)/installed-$(KSERVE_VERSION):
	@echo "Installing into $(KSERVE) with $(PYTHON): kserve $(KSERVE_VERSION)"
	@rm -rf $(KSERVE)
	@"$(PYTHON)" -m venv $(KSERVE)
	@$(KSERVE)/bin/python -m pip install $(PIP_OPTIONS) kserve==$(KSERVE_VERSION)
	@touch $@

lint: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/ruff check --quiet .
	@$(TEST)/bin/ruff format --check --quiet .
	@$(TEST)/bin/mypy --no-error-summary
	@$(TEST)/bin/lint-imports --no-logo

bench: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m pytest benchmarks --benchmark-columns=min,median,ops,rounds --benchmark-sort=name

triton: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m tests.support.triton.setup

# PEERS has options, such as PEERS="--quick --peers sluice triton".
peers: $(TEST)/installed-$(ORT)
	@$(TEST)/bin/python -m benchmarks.peers $(PEERS)

clean:
	rm -rf $(DEMO) $(TEST) $(CLUSTER) $(KSERVE) .venv-bounds-* .demo .cache build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks .import_linter_cache

# $(call install,ENVIRONMENT,EXTRAS): a new virtual environment, so that it never holds both builds of ONNX Runtime.
define install
	@if ! "$(PYTHON)" -c '$(IS_USABLE)' 2>/dev/null; then \
		echo "make: no Python 3.11, 3.12 or 3.13 with the venv module found (PYTHON is '$(PYTHON)');" \
			"install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; fi
	@echo "Installing into $(1) with $(PYTHON): sluice-gateway[$(2)]"
	@rm -rf $(1)
	@"$(PYTHON)" -m venv $(1)
	@$(1)/bin/python -m pip install $(PIP_OPTIONS) --editable '.[$(2)]'
	@touch $@
endef

$(DEMO)/installed-$(ORT): pyproject.toml
	$(call install,$(DEMO),$(ORT))

$(TEST)/installed-$(ORT): pyproject.toml
	$(call install,$(TEST),$(ORT)$(comma)dev)

$(CLUSTER)/installed-$(ORT): pyproject.toml
	$(call install,$(CLUSTER),$(ORT)$(comma)dev$(comma)ray)
