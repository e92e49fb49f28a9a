"""What the settings say about the pool, as its client takes it."""

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
        start_timeout_s=settings.pool.start_timeout_secs,
        max_connections=settings.pool.max_connections,
    )
