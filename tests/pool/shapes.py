"""Chat templates in the shapes that public models use, written for these tests from what their makers document."""

from aerix.pool.builtin import CHATML, CHATML_THINKING, GEMMA, LLAMA3, MISTRAL, PHI3

_ALTERNATE = "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"

MISTRAL_WITH_SYSTEM = (
    "{% if messages[0].role == 'system' %}{% set system, loop_messages = messages[0].content, messages[1:] %}"
    "{% else %}{% set loop_messages = messages %}{% endif %}{{ bos_token }}"
    "{% if system is defined %}[SYSTEM_PROMPT]{{ system }}[/SYSTEM_PROMPT]{% endif %}"
    "{% for m in loop_messages %}" + _ALTERNATE + "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
SYSTEM_IN_THE_LAST_USER_MESSAGE = (
    "{% if messages[0].role == 'system' %}{% set system, loop_messages = messages[0].content, messages[1:] %}"
    "{% else %}{% set loop_messages = messages %}{% endif %}{{ bos_token }}"
    "{% for m in loop_messages %}" + _ALTERNATE + "{% if m.role == 'user' %}[INST] "
    "{% if loop.last and system is defined %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
TOOL_ROLES = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% elif m.role == 'assistant' and m.tool_calls %}<|im_start|>assistant\n"
    "{% for call in m.tool_calls %}<tool_call>{{ call | tojson }}</tool_call>{% endfor %}"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALWAYS_THINKS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<|User|>{{ m.content }}"
    "{% else %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
THINKS_IF_TOLD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
NAMED_CHANNELS = (
    "{% for m in messages %}<|start|>{{ m.role }}"
    "{{ '<|channel|>final' if m.role == 'assistant' }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
OWN_SYSTEM_TEXT = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a model.<|im_end|>\n{% endif %}"
    + CHATML
)
MARKED_FOR_TRAINING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SILENT_ABOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NEEDS_TOOLS = "{% for tool in tools %}{{ tool }}{% endfor %}" + CHATML
RAISES = "{{ raise_exception('only on Sundays') }}"
FORGETS_TURNS = (
    "{% for m in messages %}{% if loop.last or m.role == 'system' %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SAYS_TWICE = CHATML + "{% for m in messages %}{{ m.content }}{% endfor %}"

SHAPES = {
    "chatml": (CHATML, "exact"),
    "chatml that thinks": (CHATML_THINKING, "cut at thinking"),
    "llama 3": (LLAMA3, "exact"),
    "phi 3": (PHI3, "exact"),
    "gemma, without a system role": (GEMMA, "merged"),
    "mistral, without a system role": (MISTRAL, "merged"),
    "mistral, with a system role": (MISTRAL_WITH_SYSTEM, "merged"),
    "system in the last user message": (SYSTEM_IN_THE_LAST_USER_MESSAGE, "merged"),
    "tool roles": (TOOL_ROLES, "exact"),
    "always thinks": (ALWAYS_THINKS, "cut at thinking"),
    "thinks if told": (THINKS_IF_TOLD, "cut at thinking"),
    "named channels": (NAMED_CHANNELS, "exact"),
    "a system text of its own": (OWN_SYSTEM_TEXT, "exact"),
    "marked for training": (MARKED_FOR_TRAINING, "exact"),
    "silent about system": (SILENT_ABOUT_SYSTEM, "merged"),
    "needs tools": (NEEDS_TOOLS, "refused"),
    "raises": (RAISES, "refused"),
    "forgets turns": (FORGETS_TURNS, "refused"),
    "says twice": (SAYS_TWICE, "refused"),
}
"""By name: the template, and what becomes of it."""
