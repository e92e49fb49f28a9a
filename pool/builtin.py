"""The chat templates that Aerix brings, for model files without one. Written from what their makers document."""

from aerix.actors import Refused
from aerix.pool.rows import Vocabulary

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_THINKING = (
    CHATML.removesuffix("{% endif %}")
    + "{{ '<think>\n' if enable_thinking else '<think>\n\n</think>\n\n' }}{% endif %}"
)
"""For scripts that think."""
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('it has no system role') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and model must alternate') }}{% endif %}"
    "{% set role = 'model' if message['role'] == 'assistant' else 'user' %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] + '<end_of_turn>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ raise_exception('it has no system role') }}{% endif %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('user and assistant must alternate') }}{% endif %}"
    "{{ '[INST]' + message['content'] + '[/INST]' if message['role'] == 'user' else message['content'] + eos_token }}"
    "{% endfor %}"
)
PHI3 = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)

BUILT_IN = {"chatml": CHATML, "llama3": LLAMA3, "gemma": GEMMA, "mistral": MISTRAL, "phi3": PHI3}
"""By the name that a setting may give."""
TRUSTED = frozenset({*BUILT_IN.values(), CHATML_THINKING})
"""What need not be kept in a process of its own."""
_MARKS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "mistral": ("[INST]", "[/INST]"),
    "phi3": ("<|user|>", "<|assistant|>", "<|end|>"),
}
_ARCHITECTURES = {
    "qwen2": "chatml", "qwen2moe": "chatml", "qwen3": "chatml", "qwen3moe": "chatml", "gemma": "gemma", "gemma2": "gemma",
    "gemma3": "gemma", "gemma3n": "gemma", "mistral": "mistral", "mistral3": "mistral", "phi3": "phi3",
}  # fmt: skip
"""What a model of the architecture speaks. Many speak what others do (``llama``): then its tokens decide."""


def template_source(vocabulary: Vocabulary, override: str) -> str:
    """The template to use: the one that is set (a name, or a source), the file's own, or a built-in one.

    Raises Refused ``no_template``, which names the setting.
    """
    if override and "{" not in override and override not in BUILT_IN:
        raise Refused(
            "no_template",
            f"There is no built-in chat template {override!r:.64}; `template` takes a file or one of {', '.join(BUILT_IN)}.",
        )
    if override:
        return BUILT_IN.get(override, override)
    if vocabulary.chat_template:
        return vocabulary.chat_template
    for name in _likely(vocabulary.architecture):
        if all(len(vocabulary.tokenize(mark, special=True)) == 1 for mark in _MARKS[name]):
            return BUILT_IN[name]
    raise Refused(
        "no_template",
        f"The model's file has no chat template, and none of the built-in ones ({', '.join(BUILT_IN)}) is known to fit "
        f"its architecture ({vocabulary.architecture or 'not named'}) and tokens. "
        'Set `template` under [models."REF"] to one of these names or to a template file.',
    )


def _likely(architecture: str) -> list[str]:
    """The built-in ones, the one of the architecture first."""
    own = _ARCHITECTURES.get(architecture)
    return sorted(BUILT_IN, key=lambda name: name != own)
