"""Schedules: records that the cluster publishes at the times of cron expressions, once per tick."""

from moldau.machines.schedules.definition import CatchUp, Schedule, schedule_of
from moldau.machines.schedules.machine import Arming, Publication, SchedulesMachine, Ticks
from moldau.machines.schedules.records import Record, ScheduleState

__all__ = [
    "Arming",
    "CatchUp",
    "Publication",
    "Record",
    "Schedule",
    "ScheduleState",
    "SchedulesMachine",
    "Ticks",
    "schedule_of",
]
