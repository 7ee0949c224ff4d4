"""The security of our own client, from the options of the data source."""

from moldau.client.security import ClientSecurity
from moldau.client.security_settings import parse_security
from moldau.model.errors import InvalidConfig
from moldau.node.ports.randomness import system_random
from pyspark_moldau.options.kafka_settings import KafkaSettings
from pyspark_moldau.options.offset_limits import OptionError


def security_of(kafka: KafkaSettings) -> ClientSecurity:
    try:
        return parse_security(kafka.java, system_random().randbytes)
    except InvalidConfig as error:
        raise OptionError(str(error)) from error
