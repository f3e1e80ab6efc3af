"""What is known of one private name of torch, and how several of them are listed."""

from dataclasses import dataclass

VERSIONS = ("2.11", "2.13")


@dataclass(frozen=True, slots=True)
class PrivateName:
    """One private name of torch: where it is, what for, and what is done without it."""

    path: str
    use: str
    fallback: str = ""  # what is done without it; empty: the feature is refused
    field: str = ""  # of the refusal
    feature: str = ""  # that is refused
    remedy: str = ""
    on_instances: bool = False  # set by torch's own constructor: the class does not show it
    seen: tuple[str, ...] = VERSIONS

    @property
    def without(self) -> str:
        """What happens in a torch that lacks it, in a few words."""
        return self.fallback or f"refused: {self.feature.rstrip(',')}"


def listed(
    home: str, words: str, use: str, fallback: str = "", *, on_instances: bool = False
) -> tuple[PrivateName, ...]:
    """Names of one module or class that serve one use."""
    return tuple(
        PrivateName(f"{home}.{word}", use, fallback, on_instances=on_instances)
        for word in words.split()
    )


def needed(
    home: str, words: str, use: str, refusal: tuple[str, str, str]
) -> tuple[PrivateName, ...]:
    """Names without which a feature is refused: the field, the feature, the remedy."""
    field, feature, remedy = refusal
    return tuple(
        PrivateName(f"{home}.{word}", use, field=field, feature=feature, remedy=remedy)
        for word in words.split()
    )
