"""Controller registration: once per incarnation, and only with the required features."""

import pytest
from metadata_scene import Scene

from moldau.machines.metadata.features import SUPPORTED_FEATURES
from moldau.machines.metadata.image import ControllerImage, ListenerImage, VersionRange
from moldau.model.errors import InvalidRequest, UnsupportedVersion
from moldau.model.ids import Address

WHERE = ListenerImage("CONTROLLER", Address("a", 9093), 0)


def controller(incarnation: int = 1, controller_id: int = 7) -> ControllerImage:
    return ControllerImage(controller_id, bytes([incarnation]) * 16, (WHERE,), SUPPORTED_FEATURES)


def test_registered_controller_is_in_the_image() -> None:
    scene = Scene()
    scene.run(scene.machine.decide_register_controller(controller()))
    assert scene.machine.image.controllers == {7: controller()}


def test_registration_is_written_once_per_incarnation() -> None:
    scene = Scene()
    scene.run(scene.machine.decide_register_controller(controller()))
    assert not scene.machine.decide_register_controller(controller()).records
    scene.run(scene.machine.decide_register_controller(controller(2)))
    assert scene.machine.image.controllers == {7: controller(2)}


def test_controller_without_feature_support_or_id_is_rejected() -> None:
    scene = Scene()
    old = ControllerImage(7, bytes(16), (WHERE,), {"metadata.version": VersionRange(1, 2)})
    with pytest.raises(UnsupportedVersion, match="does not support finalized version"):
        scene.machine.decide_register_controller(old)
    with pytest.raises(InvalidRequest):
        scene.machine.decide_register_controller(controller(controller_id=-1))
