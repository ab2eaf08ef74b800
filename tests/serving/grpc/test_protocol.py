from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from tritonclient.grpc import model_config_pb2, service_pb2

from hebe.serving.grpc import protocol

SOURCE = Path(protocol.__file__).parent


def test_the_compiled_protocol_is_that_of_the_source(tmp_path):
    """If this fails: python -m grpc_tools.protoc -I. --descriptor_set_out=protocol.binpb protocol.proto"""
    compiled = tmp_path / "protocol.binpb"
    assert protoc.main(["", f"-I{SOURCE}", f"--descriptor_set_out={compiled}", str(SOURCE / "protocol.proto")]) == 0
    fresh = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes())
    committed = descriptor_pb2.FileDescriptorSet.FromString((SOURCE / "protocol.binpb").read_bytes())
    assert fresh == committed


def triton_message(name):
    for module in (service_pb2, model_config_pb2):
        found = module.DESCRIPTOR.message_types_by_name.get(name)
        if found is not None:
            return found
    raise AssertionError(f"Triton has no message {name}")


def compare(ours, theirs):
    """Every field of ours is theirs too, with the same number and type; theirs may have more."""
    for field in ours.fields:
        other = theirs.fields_by_name[field.name]
        where = f"{ours.full_name}.{field.name}"
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), where
        oneofs = [f.containing_oneof and f.containing_oneof.name for f in (field, other)]
        assert oneofs[0] == oneofs[1], where
        if field.message_type is not None:
            assert field.message_type.full_name == other.message_type.full_name
        if field.enum_type is not None:
            ours_values, theirs_values = (f.enum_type.values_by_number for f in (field, other))
            for number, value in ours_values.items():
                assert theirs_values[number].name == value.name
    for nested in ours.nested_types:
        compare(nested, theirs.nested_types_by_name[nested.name])


def messages():
    committed = descriptor_pb2.FileDescriptorSet.FromString((SOURCE / "protocol.binpb").read_bytes())
    return [message.name for file in committed.file for message in file.message_type]


@pytest.mark.parametrize("name", messages())
def test_messages_are_tritons(name):
    compare(protocol.message(name).DESCRIPTOR, triton_message(name))


def test_all_of_tritons_methods_are_there():
    theirs = {m.name: m for m in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    ours = protocol.methods()
    assert set(ours) == set(theirs)
    for name, (request, response) in ours.items():
        assert request.DESCRIPTOR.name == theirs[name].input_type.name
        assert response.DESCRIPTOR.name == theirs[name].output_type.name


def test_our_classes_are_not_those_of_the_default_pool():
    assert protocol.message("ModelInferRequest") is not service_pb2.ModelInferRequest
    assert protocol.message("ModelInferRequest") is protocol.message("ModelInferRequest")
    with pytest.raises(KeyError):
        protocol.message("Nothing")
