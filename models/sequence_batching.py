"""A model configuration's settings of sequences, in Triton's terms, and the rows of sequences in a batch."""

import enum

import msgspec

DEFAULT_IDLE_US = 1_000_000
"""Triton's default of `max_sequence_idle_microseconds`."""


class ControlKind(enum.StrEnum):
    """The signal of a control input."""

    START = "CONTROL_SEQUENCE_START"
    END = "CONTROL_SEQUENCE_END"
    READY = "CONTROL_SEQUENCE_READY"
    ID = "CONTROL_SEQUENCE_CORRID"


class Control(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One signal: its values for false and true, in one of three types; the id of a sequence has a `data_type`."""

    kind: ControlKind = ControlKind.START
    int32_false_true: tuple[int, ...] = ()
    fp32_false_true: tuple[float, ...] = ()
    bool_false_true: tuple[bool, ...] = ()
    data_type: str = "TYPE_INVALID"

    @property
    def values(self) -> tuple[str, tuple[float, ...]]:
        """The name of the datatype and the values for false and true; ("", ()) if none are given."""
        if self.int32_false_true:
            return "TYPE_INT32", self.int32_false_true
        if self.fp32_false_true:
            return "TYPE_FP32", self.fp32_false_true
        return ("TYPE_BOOL", self.bool_false_true) if self.bool_false_true else ("", ())


class ControlInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """An input that the server fills with a signal: one element for each row."""

    name: str = ""
    control: tuple[Control, ...] = ()


class InitialState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a sequence that starts: zeros, or the content of a file in the model's directory `initial_state`."""

    name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    zero_data: bool = False
    data_file: str = ""


class SequenceState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tensor that a sequence carries from its request to the next: what one run writes, the next one reads."""

    input_name: str = ""
    output_name: str = ""
    data_type: str = "TYPE_INVALID"
    dims: tuple[int, ...] = ()
    initial_state: tuple[InitialState, ...] = ()


class DirectStrategy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Each sequence has a row of its own in the batches of one instance."""

    max_queue_delay_us: int = msgspec.field(default=0, name="max_queue_delay_microseconds")
    minimum_slot_utilization: float = 0.0


class OldestStrategy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Batches are formed of the oldest requests of up to `max_candidate_sequences` sequences of an instance."""

    max_candidate_sequences: int = 0
    preferred: tuple[int, ...] = msgspec.field(default=(), name="preferred_batch_size")
    max_queue_delay_us: int = msgspec.field(default=0, name="max_queue_delay_microseconds")
    preserve_ordering: bool = False
    """Has no effect; it is in the configuration that is printed."""


class SequenceBatching(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sequences of a model: without a strategy it is the direct one. A sequence that is idle too long ends."""

    max_idle_us: int = msgspec.field(default=0, name="max_sequence_idle_microseconds")
    control_input: tuple[ControlInput, ...] = ()
    state: tuple[SequenceState, ...] = ()
    direct: DirectStrategy | None = None
    oldest: OldestStrategy | None = None

    @property
    def idle_us(self) -> int:
        """The time after which an idle sequence ends."""
        return self.max_idle_us or DEFAULT_IDLE_US

    def slots(self, max_batch_size: int) -> int:
        """The sequences that an instance may have at a time."""
        if self.oldest is not None:
            return max(self.oldest.max_candidate_sequences, 1)
        return max(max_batch_size, 1)

    @property
    def is_direct(self) -> bool:
        """Return whether the slot of a sequence is also its row in batches."""
        return self.oldest is None

    def control(self, kind: ControlKind) -> tuple[str, Control] | None:
        """The input that carries a signal, and how; None if there is none."""
        for tensor in self.control_input:
            for control in tensor.control:
                if control.kind is kind:
                    return tensor.name, control
        return None

    @property
    def given_inputs(self) -> frozenset[str]:
        """The inputs of the model that the server provides."""
        return frozenset({*(each.name for each in self.control_input), *(each.input_name for each in self.state)})


class SequenceStep(msgspec.Struct, frozen=True, gc=False):
    """The part of a request in a sequence: its id, a number or a text, and whether it is the first or the last one."""

    id: int | str
    start: bool = False
    end: bool = False


class SequenceRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row of a batch of sequences: the slot of its sequence in the worker, and its part in the sequence."""

    slot: int
    step: SequenceStep
