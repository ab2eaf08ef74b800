"""What a profile says of the accelerator that its configuration uses, and the accelerator that this makes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hebe.profile import ProfileError
from hebe.profiling.files.plain_data import checked_fields
from hebe.profiling.files.profiled_model import file_checksum, file_of
from hebe.server_configuration import AcceleratorChoice
from hebe.spec import ModelSpec
from hebe.workload.forms import key_skew
from hebe.workload.key_frequencies import key_frequencies

if TYPE_CHECKING:  # planning reads profiles too, and needs no torch: it is imported where it is used
    import torch

    from hebe.models.hot_rows import Frequencies
    from hebe.runtime.accelerator import Accelerator
    from hebe.runtime.loaded_model import LoadOptions


@dataclass(frozen=True, slots=True)
class HotShare:
    """What the hot rows of one worker have of the tables' bytes, and of the lookups of the load that is sent."""

    bytes: float
    lookups: float

    @property
    def is_hotter(self) -> bool:
        """Whether they get more lookups than any others would: at least a tenth of what these would leave."""
        return 1 - self.lookups <= 0.9 * (1 - self.bytes) + 1e-9  # of all rows, too, whose sum need not be 1 exactly


@dataclass(frozen=True, slots=True)
class AcceleratorUse:
    """`memory_bytes` for hot rows, chosen by the trace of keys in the file `key_trace`, or, without one, as the load
    draws `keys` (a form of `workload.forms.key_skew`). `checksum` is that of the file that tells them, the trace or the
    one that `keys` names, when it was profiled; None without such a file, and where an older version has not noted it.
    `gpu` is its name in the driver's words, empty where a second CPU device stood for one. Raises `ProfileError` for
    fields of other kinds.
    """

    memory_bytes: int
    keys: str
    key_trace: str | None = None
    checksum: str | None = None
    gpu: str = ""

    def __post_init__(self) -> None:
        bytes_fit = isinstance(self.memory_bytes, int) and not isinstance(self.memory_bytes, bool)
        if not bytes_fit or self.memory_bytes < 0:
            raise ProfileError(f"accelerator: memory_bytes is {self.memory_bytes!r}: must be a whole number from 0")
        if not isinstance(self.keys, str) or not (self.key_trace is None or isinstance(self.key_trace, str)):
            raise ProfileError("accelerator: keys must be text, key_trace the path of a file, or null")
        if not (self.checksum is None or isinstance(self.checksum, str)):
            raise ProfileError(f"accelerator: checksum is {self.checksum!r}: must be text, or null")
        if not isinstance(self.gpu, str) or not (self.gpu == "" or self.gpu.isprintable()):
            raise ProfileError(f"accelerator: gpu is {self.gpu!r}: must be one line of text, or empty")

    @classmethod
    def now(cls, memory_bytes: int, keys: str, key_trace: str | None = None, gpu: str = "") -> AcceleratorUse:
        """With the checksum of the file as it is now. Raises `ProfilingError` where that cannot be read."""
        path = file_of(keys) if key_trace is None else Path(key_trace)
        return cls(memory_bytes, keys, key_trace, None if path is None else file_checksum(path), gpu)

    @property
    def words(self) -> str:
        """By what rows are chosen, and where they are, for the journal."""
        where = f" on {self.gpu}" if self.gpu else ""
        if self.key_trace is not None:
            return f"{self.memory_bytes} bytes of hot rows{where} by {self.key_trace} ({self.checksum})"
        return f"{self.memory_bytes} bytes of hot rows{where} by these keys"

    def frequencies(self, spec: ModelSpec) -> Frequencies:
        """How often each row of `spec` is looked up. Raises ValueError where that cannot be told any more."""
        if self.key_trace is not None:
            from hebe.models.hot_rows import read_key_trace

            return read_key_trace(Path(self.key_trace), spec)
        return key_frequencies(spec, key_skew(self.keys))

    def hot_share(self, spec: ModelSpec, loading: LoadOptions) -> HotShare:
        """Of its hot rows, stored as `loading` says, by the keys that the load draws. Raises as `frequencies`."""
        from hebe.models.hot_rows import choose_hot_rows

        row_format = loading.row_format
        hot = choose_hot_rows(spec, self.frequencies(spec), self.memory_bytes, row_format)
        lookups = hot.expected_coverage
        if self.key_trace is not None:  # which need not be of the load that is sent
            drawn = key_frequencies(spec, key_skew(self.keys))
            lookups = sum(drawn[table][rows].sum() for table, rows in hot.rows.items()) / spec.lookups_per_item
        table_bytes = sum(table.rows * row_format.row_bytes(table.dim) for table in spec.tables)
        return HotShare(hot.size_bytes / table_bytes, float(lookups))

    def check(self, spec: ModelSpec) -> None:
        """Raises as `frequencies` would, for less work where there is no trace to read."""
        if self.key_trace is not None:
            self.frequencies(spec)
        else:
            key_skew(self.keys)

    def check_unchanged(self) -> None:
        """Raises ValueError where the file that tells the rows is not what it was when it was profiled, as far as that
        is known, and `ProfilingError` where it cannot be read."""
        if self.checksum is not None and AcceleratorUse.now(0, self.keys, self.key_trace).checksum != self.checksum:
            raise ValueError(f"{self.key_trace or file_of(self.keys)} has changed since it was profiled")

    def accelerator(self, spec: ModelSpec) -> Accelerator:
        """The accelerator for a model. Raises as `device`."""
        from hebe.runtime.accelerator import Accelerator

        return Accelerator(self.memory_bytes, lambda: self.frequencies(spec), self.device())

    def device(self) -> torch.device:
        """The device that it was made on, on this machine. Raises `GpuMissing` where that is not here."""
        from hebe.machine.gpu import GpuMissing, device_name, find_accelerator

        device = find_accelerator(AcceleratorChoice.CUDA if self.gpu else AcceleratorChoice.CPU)
        if (here := device_name(device)) != self.gpu:
            raise GpuMissing(f"the GPU here is {here}")
        return device

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: object) -> AcceleratorUse:
        """The inverse of `to_dict`; raises `ProfileError` naming a missing, unknown or ill-typed field."""
        return cls(**checked_fields("accelerator", data, ("memory_bytes", "keys", "key_trace"), ("checksum", "gpu")))
