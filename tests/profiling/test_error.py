from hebe.profiling.error import MeasurementError
from hebe.server_configuration import Lane, Placement


def test_a_measurement_that_failed_names_its_configuration_and_why():
    configuration = (Lane(Placement.MODEL_ON_HOST, 2, 1, 32), Lane(Placement.SPARSE_ON_HOST, 1, 1, 8, dense_workers=1))
    fault = MeasurementError(configuration, "the server ended")
    settings, _, why = str(fault).rpartition(": ")
    assert why == fault.why == "the server ended"
    assert {"workers 2", "batch_size 32", "beside_batch_size 8"} <= set(settings.split(", "))
    assert fault.configuration is configuration
