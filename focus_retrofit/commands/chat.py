"""`focus-retrofit chat`: a conversation whose cache goes on from turn to turn."""

from __future__ import annotations

from typing import Any

import click

from focus_kernels.errors import FocusError

from .options import Command, model_options
from .sampling import sampling, sampling_options

HELP = "/base and /focus switch attention, /report shows what was computed, /new starts anew, /quit ends"


@click.command("chat", cls=Command)
@model_options
@click.option("--system", help="What the model is told before the conversation.")
@sampling_options
def command(system: str | None, **options: Any) -> None:
    """Talk with MODEL. Focus attention can be switched off and on along the way, to compare."""
    picked = sampling(options)
    from .load import load_focused

    model, tokenizer = load_focused(options)
    if not tokenizer.chat_template:
        raise FocusError("this model's tokenizer has no chat template: use `focus-retrofit generate`")
    click.echo(HELP, err=True)
    talk = Talk(model, tokenizer, system, picked)
    while True:
        try:
            line = click.prompt(">", prompt_suffix=" ").strip()
        except click.Abort:
            click.echo()
            return
        if line == "/quit":
            return
        talk.say(line)


class Talk:
    """The messages so far, and what attention keeps of them."""

    def __init__(self, model: Any, tokenizer: Any, system: str | None, picked: dict[str, Any]):
        self.model, self.tokenizer, self.picked, self.system = model, tokenizer, picked, system
        self.start()

    def start(self) -> None:
        self.messages = [{"role": "system", "content": self.system}] if self.system else []
        self.forget()

    def forget(self) -> None:
        """A cache belongs to one way to attend: another reads the conversation anew."""
        from transformers import DynamicCache

        focus = self.model.focus
        self.cache = focus.new_cache() if focus.enabled else DynamicCache(config=self.model.config)

    def say(self, line: str) -> None:
        """One turn, or one of the commands."""
        if line in ("/base", "/focus"):
            self.model.focus._switch(line == "/focus")
            self.forget()
            click.echo(f"attention: {line[1:]}")
        elif line == "/report":
            click.echo(str(self.model.focus.report()))
        elif line == "/new":
            self.start()
        elif line.startswith("/"):
            click.echo(HELP)
        elif line:
            self.answer(line)

    def answer(self, line: str) -> None:
        from ..generation import continue_text

        self.messages.append({"role": "user", "content": line})
        ids = self.tokenizer.apply_chat_template(
            self.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).input_ids
        self.keep_common(ids)
        show = lambda part: click.echo(part, nl=False)  # noqa: E731
        done = continue_text(
            self.model, self.tokenizer, ids, show=show, past_key_values=self.cache, use_cache=True, **self.picked
        )
        self.read = [*ids[0].tolist(), *done.ids]
        click.echo()
        self.messages.append({"role": "assistant", "content": done.text})

    def keep_common(self, ids: Any) -> None:
        """What the cache holds must be a beginning of what is asked now; where the template says it differently, the
        conversation is read anew."""
        known = self.cache.get_seq_length()
        if known and self.read[:known] != ids[0, :known].tolist():
            self.forget()
