"""Tensors of the Open Inference Protocol, as Python values: both ways in which a message may carry them.

Either the values are listed in `contents`, or the bytes of all tensors are in `raw_…_contents`, in order: numbers
little-endian, each string behind its length in four bytes.
"""

import struct
from collections.abc import Iterator, Sequence
from math import prod

from gateway.errors import BadRequest
from gateway.inference_pb import inference_pb2 as pb

Scalar = bool | int | float | str
_STRUCT = {
    "BOOL": "?", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
_FIELD = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
_LENGTH = struct.Struct("<I")


def read_tensors(request: pb.ModelInferRequest) -> dict[str, list[Scalar]]:
    """The values of each input by its name.

    Raises:
        BadRequest: a tensor's name twice, a type that is none, or data that does not fit type and shape.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise BadRequest(f"{len(request.inputs)} inputs, but {len(raw)} raw contents")
    tensors: dict[str, list[Scalar]] = {}
    for index, tensor in enumerate(request.inputs):
        if tensor.name in tensors:
            raise BadRequest(f"the input `{tensor.name}` is there twice", tensor.name)
        values = _unpacked(tensor, raw[index]) if raw else _listed(tensor)
        if len(values) != prod(tensor.shape):
            raise BadRequest(
                f"the input `{tensor.name}` has {len(values)} values, not its shape's", tensor.name
            )
        tensors[tensor.name] = _rounded(values) if tensor.datatype == "FP32" else values
    return tensors


def _rounded(values: list[Scalar]) -> list[Scalar]:
    """As they were meant: 32 bits make 0.10000000149011612 of 0.1."""
    return [float(f"{value:.7g}") for value in values]


def _listed(tensor: pb.ModelInferRequest.InferInputTensor) -> list[Scalar]:
    field = _FIELD.get(tensor.datatype)
    if field is None:
        raise _no_type(tensor)
    values = getattr(tensor.contents, field)
    return [_text(tensor, v) for v in values] if tensor.datatype == "BYTES" else list(values)


def _unpacked(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes) -> list[Scalar]:
    if tensor.datatype == "BYTES":
        return [_text(tensor, value) for value in _strings(tensor, raw)]
    form = _STRUCT.get(tensor.datatype)
    if form is None:
        raise _no_type(tensor)
    if len(raw) % struct.calcsize(form):
        raise BadRequest(f"the raw contents of `{tensor.name}` are no {tensor.datatype}", tensor.name)
    return [value for (value,) in struct.iter_unpack(f"<{form}", raw)]


def _strings(tensor: pb.ModelInferRequest.InferInputTensor, raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack(raw[at:begin])[0] if begin <= len(raw) else len(raw) + 1
        if at > len(raw):
            raise BadRequest(f"the raw contents of `{tensor.name}` end inside a string", tensor.name)
        yield raw[begin:at]


def _text(tensor: pb.ModelInferRequest.InferInputTensor, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"the input `{tensor.name}` is not UTF-8", tensor.name) from error


def _no_type(tensor: pb.ModelInferRequest.InferInputTensor) -> BadRequest:
    return BadRequest(
        f"the input `{tensor.name}` has the datatype '{tensor.datatype}', which can't be read", tensor.name
    )


def add_strings(response: pb.ModelInferResponse, name: str, values: Sequence[bytes], is_raw: bool) -> None:
    """A BYTES output with one dimension."""
    tensor = response.outputs.add(name=name, datatype="BYTES")
    tensor.shape.append(len(values))
    if is_raw:
        response.raw_output_contents.append(b"".join(_LENGTH.pack(len(v)) + v for v in values))
    else:
        tensor.contents.bytes_contents.extend(values)


def add_ints(response: pb.ModelInferResponse, name: str, values: Sequence[int], is_raw: bool) -> None:
    """An INT64 output with one dimension."""
    tensor = response.outputs.add(name=name, datatype="INT64")
    tensor.shape.append(len(values))
    if is_raw:
        response.raw_output_contents.append(struct.pack(f"<{len(values)}q", *values))
    else:
        tensor.contents.int64_contents.extend(values)


def parameter_value(parameter: pb.InferParameter) -> Scalar | None:
    """What a parameter holds; None when nothing."""
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind is not None else None


def set_parameter(response: pb.ModelInferResponse, name: str, value: Scalar) -> None:
    parameter = response.parameters[name]
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value
