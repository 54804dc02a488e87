"""Triton's class `ModelConfig`, by which a model in Python completes its configuration."""

from collections.abc import Mapping
from typing import Any


class ModelConfig:
    """A configuration that a model completes; Triton's class of that name, with Triton's errors."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = config

    def as_dict(self) -> dict[str, Any]:
        """The configuration."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the maximum batch size; raises ValueError below the size that the configuration has."""
        known = self._config["max_batch_size"]
        if known > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {known}, but in auto-complete-config function for model "
                f"'{self._config['name']}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Turn on the dynamic batcher, unless its settings are there; raises ValueError with another scheduler."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._config:
                raise ValueError(
                    f"configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._config['name']}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, input: Mapping[str, Any]) -> None:
        """Add an input, or complete it; raises ValueError for one that contradicts the configuration."""
        self._add("input", input, ("name", "data_type", "dims", "optional"))

    def add_output(self, output: Mapping[str, Any]) -> None:
        """Add an output, or complete it; raises ValueError for one that contradicts the configuration."""
        self._add("output", output, ("name", "data_type", "dims"))

    def set_model_transaction_policy(self, transaction_policy_dict: Mapping[str, Any]) -> None:
        """Set the number of responses to a request; raises ValueError if the configuration has another setting."""
        if transaction_policy_dict.keys() - {"decoupled"}:
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._config['name']}' "
                "contains property other than 'decoupled'."
            )
        policy = self._config.setdefault("model_transaction_policy", {})
        for key, value in transaction_policy_dict.items():
            if policy.setdefault(key, value) != value:
                raise ValueError(
                    f"trying to change decoupled property in auto-complete-config for model '{self._config['name']}', "
                    f"which is already set to '{policy[key]}'."
                )

    def _add(self, kind: str, tensor: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
        model = self._config["name"]
        name = tensor.get("name")
        if name is None:
            raise ValueError(f"{kind} in auto-complete-config function for model '{model}' is missing 'name' property.")
        at = f"{kind} '{name}' in auto-complete-config function for model '{model}'"
        if tensor.keys() - set(allowed):
            raise ValueError(f"{at} contains property other than {', '.join(map(repr, allowed))}.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{at} is missing '{key}' property.")
        known = next((each for each in self._config[kind] if each["name"] == name), None)
        if known is None:
            self._config[kind].append(dict(tensor))
            return
        if known["data_type"] not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{model}', configuration expects datatype {known['data_type']} for {kind} "
                f"'{name}', model provides {tensor['data_type']}"
            )
        if known["dims"] and list(known["dims"]) != list(tensor["dims"]):
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects dims {tensor['dims']} but the model "
                f"configuration specifies dims {known['dims']}"
            )
        if "optional" in tensor and known.get("optional") and not tensor["optional"]:
            raise ValueError(
                f"model '{model}', tensor '{name}': the model expects optional {tensor['optional']} but the model "
                f"configuration specifies optional {known['optional']}"
            )
        known.update(tensor)
