"""User and organisations of a Hub token (whoami), validated before anything relies on them."""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from hub.client.session import WrongAnswer

if TYPE_CHECKING:
    from huggingface_hub import HfApi


class Organisation(BaseModel):
    """An organisation of the user."""

    name: str


class Account(BaseModel):
    """The token's user; ``role`` is what the token may do ("read", "write", ...), None when the Hub does not say."""

    name: str = Field(min_length=1)
    orgs: tuple[Organisation, ...] = ()
    auth: dict[str, Any] = {}

    @property
    def role(self) -> str | None:
        """What the token may do."""
        token = self.auth.get("accessToken")
        return token.get("role") if isinstance(token, dict) else None

    @property
    def names(self) -> list[str]:
        """Where its token may publish: the user first, then the organisations."""
        return [self.name, *(item.name for item in self.orgs)]


def account(api: "HfApi") -> Account:
    """Ask the Hub. Raises WrongAnswer when what it says is no account."""
    try:
        return Account.model_validate(api.whoami())
    except ValidationError as error:
        raise WrongAnswer(f"an account without {'.'.join(map(str, error.errors()[0]['loc'])) or 'fields'}") from None
