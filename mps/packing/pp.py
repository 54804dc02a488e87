"""Peak prediction: a correlated tenant is placed if the others' peak is forecast to come at another time."""

from typing import Annotated

import msgspec

from sluice.mps.packing.cbp import CorrelationBased
from sluice.mps.packing.series import autocorrelation, forecast
from sluice.mps.packing.tenant import Device, Tenant


class PeakPrediction(CorrelationBased, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="pp"):
    """PP of Kube-Knots (CLUSTER '19) after its CBP, as Ferikoglou et al. (2021) run both.

    Where CBP refuses and the free memory resembles itself `lag` samples earlier (autocorrelation above `autocorr_min`),
    a first-order autoregression forecasts the free memory `lag` samples from now, and a tenant that counts with no more
    is placed. Kube-Knots takes any autocorrelation above 0 and looks a second ahead; the defaults are Ferikoglou's.
    """

    lag: Annotated[int, msgspec.Meta(ge=1)] = 10
    autocorr_min: Annotated[float, msgspec.Meta(ge=-1)] = 0.35

    def refusal(self, tenant: Tenant, device: Device) -> str | None:
        """The refusal of CBP, unless a forecast shows that the tenant fits."""
        reason = super().refusal(tenant, device)
        if reason is None or len(device.used) < max(self.samples_min, self.lag + 2):
            return reason
        alike = autocorrelation(device.free, self.lag)
        if alike <= self.autocorr_min:
            return f"{reason}; no forecast (autocorrelation {alike:.2f})"
        free = min(device.memory_mib, round(forecast(device.free, self.lag)))
        if self.accounted_mib(tenant) > free:
            return f"{reason}; {max(0, free)} MiB are forecast to be free"
        return None
