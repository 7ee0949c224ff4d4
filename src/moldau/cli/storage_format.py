"""`moldau storage format`: format the data directories of a node from flags and settings files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.cli.errors import CommandError, usage_error
from moldau.cli.files import read_identity, read_text
from moldau.machines.raft import Endpoints, VoterSet
from moldau.model.errors import InvalidConfig
from moldau.node.configuration import Configuration, load_configuration
from moldau.node.identity import identify
from moldau.node.ports.capabilities import Capabilities
from moldau.node.ports.clock import SystemClock
from moldau.node.ports.files import SystemDisk
from moldau.node.ports.randomness import system_random
from moldau.node.scram_argument import parse_scram_users
from moldau.node.storage_format import InitialVoters, format_log_dir, parse_initial_controllers
from moldau.storage.log_dir import CorruptMetaProperties, LogDir, LogDirLocked, MetaProperties, decode_id

DATA_DEFAULT: Final = Path("moldau-data")
NODE_DEFAULT: Final = 1


@dataclass(frozen=True, slots=True)
class FormatFlags:
    """The options of the command line, which override the settings."""

    data: tuple[Path, ...]
    node_id: int | None
    cluster_id: str | None
    is_standalone: bool
    initial_controllers: str | None
    has_no_initial_controllers: bool
    scram_users: tuple[str, ...] = field(default=(), repr=False)


def format_data(flags: FormatFlags, files: list[Path], *, ignore_formatted: bool) -> tuple[list[str], MetaProperties]:
    """Format the data directories; return their paths, first that of the metadata log, and its identity."""
    _check(flags)
    configuration = _configuration(files) if files else None
    paths = _paths(flags, configuration)
    for path in paths:
        read_identity(Path(path))
    disk = SystemDisk(Capabilities.detect())
    folders: list[LogDir] = []
    try:
        voters = _voters(flags, configuration)
        for path in paths:
            folders.append(LogDir.open(disk, path))
        if not ignore_formatted:
            _check_unformatted(folders)
        identity = _format(flags, configuration, folders[0], disk, voters)
        for each in folders[1:]:
            identify(each, identity.node_id, system_random(), identity.cluster_id)
        return paths, identity
    except (LogDirLocked, CorruptMetaProperties, InvalidConfig) as error:
        raise CommandError(str(error)) from error
    finally:
        for each in folders:
            each.close()


def _check_unformatted(folders: list[LogDir]) -> None:
    for each in folders:
        if each.identity() is not None:
            raise CommandError(f"{each.path} is formatted already; use --ignore-formatted to accept that")


def _format(
    flags: FormatFlags,
    configuration: Configuration | None,
    folder: LogDir,
    disk: SystemDisk,
    voters: VoterSet | InitialVoters,
) -> MetaProperties:
    node_id = _node_id(flags, configuration)
    known = folder.identity()
    if known is not None:
        if flags.scram_users:
            raise CommandError("the directory is formatted already: create users with moldau user create")
        voters = InitialVoters.UNSPECIFIED
    return format_log_dir(
        folder,
        disk,
        system_random(),
        SystemClock(),
        node_id=node_id,
        cluster_id=flags.cluster_id,
        voters=voters,
        endpoints=_endpoints(configuration),
        scram_users=parse_scram_users(flags.scram_users, system_random().randbytes),
    )


def _check(flags: FormatFlags) -> None:
    modes = [flags.is_standalone, flags.initial_controllers is not None, flags.has_no_initial_controllers]
    if sum(modes) > 1:
        raise usage_error("--standalone, --initial-controllers and --no-initial-controllers cannot be combined")
    if flags.cluster_id is not None:
        try:
            decode_id(flags.cluster_id)
        except ValueError:
            raise usage_error(
                f"--cluster-id {flags.cluster_id}: must be 22 letters, digits, - and _, as Kafka prints a UUID"
            ) from None


def _configuration(files: list[Path]) -> Configuration:
    return load_configuration([(str(path), read_text(path)) for path in files])


def _paths(flags: FormatFlags, configuration: Configuration | None) -> list[str]:
    """Return the data directories, first that of the metadata log."""
    if flags.data:
        return list(dict.fromkeys(map(str, flags.data)))
    if configuration is None:
        return [str(DATA_DEFAULT)]
    settings = configuration.settings
    return list(dict.fromkeys((settings.metadata_folder, *settings.folders)))


def _node_id(flags: FormatFlags, configuration: Configuration | None) -> int:
    if flags.node_id is not None:
        return flags.node_id
    return configuration.settings.node_id if configuration is not None else NODE_DEFAULT


def _voters(flags: FormatFlags, configuration: Configuration | None) -> VoterSet | InitialVoters:
    is_controller = configuration is None or configuration.is_controller
    if not is_controller and (flags.is_standalone or flags.has_no_initial_controllers):
        raise InvalidConfig("process.roles does not include controller: only controllers are voters of the quorum.")
    if flags.initial_controllers is not None and is_controller:
        listeners = configuration.listeners.controllers if configuration is not None else ()
        return parse_initial_controllers(flags.initial_controllers, *listeners[:1])
    if flags.is_standalone:
        return InitialVoters.STANDALONE
    return InitialVoters.NONE if flags.has_no_initial_controllers else InitialVoters.UNSPECIFIED


def _endpoints(configuration: Configuration | None) -> Endpoints:
    """Return the controller's endpoints; a port of 0 is known only when it starts."""
    if configuration is None:
        return ()
    listeners = configuration.listeners
    named = ((each.name, listeners.advertised_on(each.name)) for each in listeners.for_controllers)
    return tuple((name, address) for name, address in named if address is not None and address.port)
