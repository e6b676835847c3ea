"""The gRPC server around a test's gateway, and Triton's client as people use it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc.aio import InferenceServerClient

from deploy.grpc_server import GrpcServer
from gateway.inference_pb import inference_pb2 as pb
from gateway.inference_pb.inference_pb2_grpc import GRPCInferenceServiceStub
from tests.integration.client import Question
from tests.integration.rig import RunningGateway


class RunningGrpc:
    """A gRPC server at `address`, with a client of Triton's and a plain stub."""

    def __init__(self, server: GrpcServer, address: str, channel: grpc.aio.Channel) -> None:
        self.server, self.address, self.channel = server, address, channel
        self.stub = GRPCInferenceServiceStub(channel)
        self.triton = InferenceServerClient(address)


@asynccontextmanager
async def grpc_at(gateway: RunningGateway) -> AsyncIterator[RunningGrpc]:
    server = GrpcServer(gateway.gateway, "127.0.0.1", 0)
    address = f"127.0.0.1:{await server.start()}"
    async with grpc.aio.insecure_channel(address) as channel:
        running = RunningGrpc(server, address, channel)
        try:
            yield running
        finally:
            await running.triton.close()
            await server.drained()


def strings(name: str, *values: str) -> Any:
    """A BYTES input for Triton's client."""
    tensor = triton.InferInput(name, [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([v.encode() for v in values], dtype=np.object_))
    return tensor


def numbers(name: str, datatype: str, *values: float) -> Any:
    dtype = {"INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_}[datatype]
    tensor = triton.InferInput(name, [len(values)], datatype)
    tensor.set_data_from_numpy(np.array(values, dtype=dtype))
    return tensor


def prompt_of(question: Question) -> Any:
    if question.kind == "chat":
        return strings("messages", json.dumps(question.messages))
    return strings("text_input", question.prompt)


def parameters_of(question: Question) -> dict[str, Any]:
    return {"max_tokens": question.tokens, "ignore_eos": True, **question.more}


def asks(question: Question, id_: str = "1") -> dict[str, Any]:
    """What Triton's streaming client takes for one request."""
    return {
        "model_name": question.model,
        "inputs": [prompt_of(question)],
        "request_id": id_,
        "parameters": parameters_of(question),
    }


def message(question: Question, **more: Any) -> pb.ModelInferRequest:
    """The same for a plain stub, with its values listed."""
    request = pb.ModelInferRequest(model_name=question.model, **more)
    name = "messages" if question.kind == "chat" else "text_input"
    content = json.dumps(question.messages) if question.kind == "chat" else question.prompt
    tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(content.encode())
    for field, value in parameters_of(question).items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[
            type(value)
        ]
        setattr(request.parameters[field], kind, value)
    return request


def text_of(result: Any) -> str:
    """The text of one of the client's results; empty where it holds none."""
    values = result.as_numpy("text_output")
    return "" if values is None else b"".join(values).decode()


def listed(response: pb.ModelInferResponse, name: str) -> list[Any]:
    """The values of an output that is listed, not raw."""
    contents = next(output.contents for output in response.outputs if output.name == name)
    return [value for _, values in contents.ListFields() for value in values]


def parameters(response: pb.ModelInferResponse) -> dict[str, Any]:
    return {name: getattr(p, p.WhichOneof("parameter_choice")) for name, p in response.parameters.items()}
