"""The real tritonserver from the wheel `nvidia-pytriton`, run as a child process."""

from tritonstack_deploy.embedded.api import ModelState
from tritonstack_deploy.embedded.server import CONTROL_APIS, EmbeddedServer

__all__ = ["CONTROL_APIS", "EmbeddedServer", "ModelState"]
