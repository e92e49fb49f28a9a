"""What the settings say about the pool, as its client takes it."""

from aerix.bounds import in_force
from aerix.pool.bounds import AUTOSTART, CONNECTIONS
from aerix.pool.client import PoolSettings
from aerix.settings import Settings


def pool_settings(settings: Settings, model: str | None = None) -> PoolSettings:
    """``model`` is what a pool that has to be started loads at once; one with flags of its own is loaded when asked for."""
    loads = model is not None and not settings.models.of(model).flags()
    return PoolSettings(
        socket=settings.pool.socket,
        load=(model,) if model is not None and loads else (),
        flags=settings.pool.flags,
        command=settings.pool.command,
        start_timeout_s=in_force(AUTOSTART, settings)[0],
        max_connections=int(in_force(CONNECTIONS, settings)[0]),
    )
