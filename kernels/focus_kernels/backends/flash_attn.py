name = "flash_attn"


def unavailable() -> str | None:
    return "not yet"


def refuse(call: object) -> str | None:
    return None
