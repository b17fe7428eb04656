"""The Ray runtime: runs the processes of a program on the nodes of a cluster. Only this package imports ray.

Ray places processes, detects lost ones, and transfers calls between nodes. Two processes on one node use a direct
connection instead (runtime/rendezvous.py): a Ray call costs about a millisecond of CPU on each side, a direct
call 20 us.

    driver   RaySupervisor --commands, watches--> RayRoleProcess, a Ray actor on some node, one per process
    edges    direct connection to a RayRoleProcess on the same node, Ray call to one elsewhere
"""

from thespis.runtime.ray.driver import RaySupervisor

__all__ = ["RaySupervisor"]
