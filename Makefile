# Everything a newcomer needs: `make demo`, `make test`.
PYTHON ?= python3.11
VENV ?= .venv
LAUNCHER_VENV ?= .venv-launcher
BIN := $(VENV)/bin
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
# The lock file is complete, so nothing is resolved; PyPI's torchvision would break the CPU torch.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-deps --disable-pip-version-check

.PHONY: demo test test-all check setup smollm2 launcher lock launcher-lock clean

demo: setup  ## Train the built-in policy with Co-rewarding-III, two trainer processes and a vLLM server
	$(BIN)/corew demo

test: setup  ## Default tests (CPU, real gloo processes, real vLLM)
	$(BIN)/python -m pytest

test-all: setup  ## Default and slow tests
	$(BIN)/python -m pytest -m ""

check: setup  ## Lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(VENV)/.installed  ## Create .venv with the pinned CPU packages

$(VENV)/.installed: requirements/cpu.lock pyproject.toml
	@echo "Installing the pinned CPU packages into $(VENV) (about 4 GB, two minutes) ..."
	$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) -r requirements/cpu.lock 2>/dev/null \
		|| $(PIP_INSTALL) -r requirements/cpu.lock --extra-index-url $(TORCH_CPU_INDEX)
	@$(PIP_INSTALL) --editable .
	@touch $@

smollm2: setup  ## Fetch SmolLM2-135M-Instruct as a Hugging Face folder, with few-shot sums
	$(BIN)/python -m megatron_corew.lab.smollm2 --out models/smollm2-135m-instruct

# NeMo-Run cannot share an environment with vLLM (they need different prometheus instrumentators).
launcher: $(LAUNCHER_VENV)/.installed  ## Create .venv-launcher with NeMo-Run, for python -m launchers.*

$(LAUNCHER_VENV)/.installed: requirements/launcher.lock
	$(PYTHON) -m venv $(LAUNCHER_VENV)
	@$(LAUNCHER_VENV)/bin/python -m pip install --quiet --no-deps --disable-pip-version-check -r $<
	@touch $@

launcher-lock:  ## Resolve NeMo-Run again and write requirements/launcher.lock
	rm -rf $(LAUNCHER_VENV)
	$(PYTHON) -m venv $(LAUNCHER_VENV)
	$(LAUNCHER_VENV)/bin/python -m pip install --quiet "nemo-run==0.11.1" "leptonai>=0.26.6,<0.47"
	$(LAUNCHER_VENV)/bin/python -m pip freeze > requirements/launcher.lock

lock: setup  ## Write the versions of .venv into requirements/cpu.lock
	$(BIN)/python -m pip freeze --exclude-editable > requirements/cpu.lock

clean:
	rm -rf $(VENV) $(LAUNCHER_VENV) build *.egg-info
