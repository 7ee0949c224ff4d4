"""Schemas in produce requests: chosen by id, by subject, or given with the request and registered."""

from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, model_validator

from moldau.console.errors import ConsoleError
from moldau.console.schema_values import SchemaValues
from moldau.schemas.types import Codec, InvalidSchema, UnencodableValue
from moldau.schemas.wire_format import frame

TEXT_MAX: Final = 1_000_000


class SchemaChoice(BaseModel):
    """The schema of all keys or values of a request: an id, a version of a subject, or a text to register."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    subject: Annotated[str | None, Field(max_length=600, description="TOPIC-value or TOPIC-key without it.")] = None
    version: Annotated[int, Field(ge=1, lt=2**31)] | Literal["latest"] = "latest"
    kind: Annotated[Literal["AVRO", "JSON", "PROTOBUF"], Field(alias="type")] = "AVRO"
    text: Annotated[str | None, Field(alias="schema", max_length=TEXT_MAX)] = None
    message: Annotated[str | None, Field(max_length=600, description="Protobuf: not the first message.")] = None

    @model_validator(mode="after")
    def _is_one_choice(self) -> "SchemaChoice":
        if self.id is not None and (self.text is not None or self.subject is not None):
            raise ValueError("give only one of id, subject and schema")
        return self

    async def encoder(self, values: SchemaValues, subject: str, *, may_register: bool) -> "Encoder":
        """Return the encoder of the schema; `subject` is the one of the topic."""
        schema_id = self.id or await self._schema_id(values, quote(self.subject or subject, ""), may_register)
        try:
            return Encoder(schema_id, await values.codec(schema_id, self.message))
        except InvalidSchema as error:
            raise ConsoleError(422, "invalid_schema", f"Schema {schema_id} is not valid: {error}") from None

    async def _schema_id(self, values: SchemaValues, subject: str, may_register: bool) -> int:
        service, client, user = values.service, values.client, values.user
        if self.text is None:
            found = await service.call(client, user, "GET", f"/subjects/{subject}/versions/{self.version}")
            return int(found["id"])
        method_path = ("POST", f"/subjects/{subject}/versions" if may_register else f"/subjects/{subject}")
        body = {"schema": self.text, "schemaType": self.kind}
        return int((await service.call(client, user, *method_path, body=body))["id"])


class Encoder:
    """Encodes values with one schema."""

    def __init__(self, schema_id: int, codec: Codec) -> None:
        self.schema_id, self._codec = schema_id, codec

    def encode(self, value: Any) -> bytes:
        try:
            return frame(self.schema_id, self._codec.encode(value))
        except UnencodableValue as error:
            message = f"Schema {self.schema_id} does not accept a value{error}"
            raise ConsoleError(422, "invalid_value", message) from None
